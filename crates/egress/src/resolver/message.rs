//! Queries and responses of DNS (RFC 1035), with the extension mechanism (RFC 6891).
//!
//! The parser accepts only what a stub resolver sends: one question, and at most the OPT record. Everything else is
//! refused, also compression pointers, which a question does not need. Responses are written from parsed values, except
//! for the question, which is returned as it was sent. A response always fits into a datagram of 512 bytes.

use std::net::Ipv4Addr;

use crate::rules::DnsName;

const HEADER_BYTES: usize = 12;
const MAX_NAME_BYTES: usize = 255;
const MAX_LABEL_BYTES: usize = 63;

pub(super) const TYPE_A: u16 = 1;
pub(super) const TYPE_PTR: u16 = 12;
pub(super) const TYPE_ANY: u16 = 255;
const TYPE_OPT: u16 = 41;
pub(super) const CLASS_IN: u16 = 1;

const FLAG_RESPONSE: u16 = 1 << 15;
const FLAG_TRUNCATED: u16 = 1 << 9;
const FLAG_RECURSION_DESIRED: u16 = 1 << 8;
const FLAG_RECURSION_AVAILABLE: u16 = 1 << 7;
const FLAG_CHECKING_DISABLED: u16 = 1 << 4;

/// The size of datagrams that the resolver accepts, for the OPT record.
const UDP_PAYLOAD_BYTES: u16 = 1232;
/// The time for which a guest may use an address without another query.
const TTL_SECONDS: u32 = 30;

/// The result of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    NoError = 0,
    FormatError = 1,
    ServerFailure = 2,
    NoSuchName = 3,
    NotImplemented = 4,
    Refused = 5,
    /// The version of the extension mechanism is unknown. The upper bits of this code are in the OPT record.
    BadVersion = 16,
}

/// The name of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum QuestionName {
    Root,
    Host(DnsName),
    /// A name that no host can have.
    Other,
}

/// A parsed query.
#[derive(Debug)]
pub(super) struct Query<'a> {
    header: Header,
    /// The bytes of the question.
    question: &'a [u8],
    pub(super) name: QuestionName,
    pub(super) kind: u16,
    pub(super) class: u16,
    /// The version of the extension mechanism, if the query uses it.
    pub(super) extension: Option<u8>,
}

/// Reason why a message is not a query.
#[derive(Debug)]
pub(super) enum QueryError {
    /// The message must not have a response: it is a response itself, or has no header.
    Ignored,
    Refused {
        header: Header,
        code: Code,
    },
}

/// The answer to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Address(Ipv4Addr),
    Name(DnsName),
}

/// The fields of a query's header that its response repeats.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    id: u16,
    flags: u16,
}

impl<'a> Query<'a> {
    pub(super) fn parse(message: &'a [u8]) -> Result<Self, QueryError> {
        let mut reader = Reader(message);
        let mut header = [0; HEADER_BYTES / 2];
        for field in &mut header {
            *field = reader.u16().ok_or(QueryError::Ignored)?;
        }
        let [id, flags, questions, answers, authorities, additional] = header;
        if flags & FLAG_RESPONSE != 0 {
            return Err(QueryError::Ignored);
        }
        let header = Header { id, flags };
        if flags >> 11 & 0xf != 0 {
            return Err(QueryError::Refused { header, code: Code::NotImplemented });
        }
        let malformed = QueryError::Refused { header, code: Code::FormatError };
        if flags & FLAG_TRUNCATED != 0 || (questions, answers, authorities) != (1, 0, 0) || additional > 1 {
            return Err(malformed);
        }
        Self::parse_records(header, reader, additional == 1).ok_or(malformed)
    }

    fn parse_records(header: Header, mut reader: Reader<'a>, has_extension: bool) -> Option<Self> {
        let start = reader.0;
        let name = reader.name()?;
        let (kind, class) = (reader.u16()?, reader.u16()?);
        let question = &start[..start.len() - reader.0.len()];
        let extension = if has_extension { Some(reader.opt_record()?) } else { None };
        reader.0.is_empty().then_some(Self { header, question, name, kind, class, extension })
    }

    /// Writes a response.
    pub(super) fn respond(&self, code: Code, answer: Option<&Answer>) -> Vec<u8> {
        let mut out = self.header.respond(code, [1, u16::from(answer.is_some()), self.extension.is_some().into()]);
        out.extend_from_slice(self.question);
        match answer {
            Some(Answer::Address(address)) => write_answer(&mut out, TYPE_A, &address.octets()),
            Some(Answer::Name(name)) => write_answer(&mut out, TYPE_PTR, &encode_name(name)),
            None => {}
        }
        if self.extension.is_some() {
            // The root, the type, the size of datagrams, the upper bits of the code, version 0, no flags, no options.
            out.push(0);
            out.extend_from_slice(&TYPE_OPT.to_be_bytes());
            out.extend_from_slice(&UDP_PAYLOAD_BYTES.to_be_bytes());
            out.extend_from_slice(&[code as u8 >> 4, 0, 0, 0, 0, 0]);
        }
        out
    }
}

impl Header {
    /// Writes the response to a message that is not a query.
    pub(super) fn refuse(self, code: Code) -> Vec<u8> {
        self.respond(code, [0; 3])
    }

    /// Writes a header with the numbers of questions, answers and additional records.
    fn respond(self, code: Code, [questions, answers, additional]: [u16; 3]) -> Vec<u8> {
        const OPCODE: u16 = 0xf << 11;
        let repeated = self.flags & (OPCODE | FLAG_RECURSION_DESIRED | FLAG_CHECKING_DISABLED);
        let flags = FLAG_RESPONSE | repeated | FLAG_RECURSION_AVAILABLE | code as u16 & 0xf;
        [self.id, flags, questions, answers, 0, additional].iter().flat_map(|field| field.to_be_bytes()).collect()
    }
}

fn write_answer(out: &mut Vec<u8>, kind: u16, data: &[u8]) {
    // A pointer to the question, which follows the header.
    const QUESTION_NAME: u16 = 0xc00c;
    for field in [QUESTION_NAME, kind, CLASS_IN] {
        out.extend_from_slice(&field.to_be_bytes());
    }
    out.extend_from_slice(&TTL_SECONDS.to_be_bytes());
    out.extend_from_slice(&u16::try_from(data.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.extend_from_slice(data);
}

/// Writes a name as labels. A [`DnsName`] has valid labels.
fn encode_name(name: &DnsName) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.as_str().len() + 2);
    for label in name.as_str().split('.') {
        out.push(u8::try_from(label.len()).unwrap_or(0));
        out.extend_from_slice(label.as_bytes());
    }
    out.push(0);
    out
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn u16(&mut self) -> Option<u16> {
        let bytes = self.take(2)?;
        Some(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Reads a name without compression pointers.
    fn name(&mut self) -> Option<QuestionName> {
        let mut text = String::new();
        let mut size = 1;
        let mut is_host = true;
        loop {
            let length = usize::from(self.u8()?);
            if length == 0 {
                break;
            }
            size += length + 1;
            if length > MAX_LABEL_BYTES || size > MAX_NAME_BYTES {
                return None;
            }
            if !text.is_empty() {
                text.push('.');
            }
            // A dot inside of a label would make the label look like two.
            match std::str::from_utf8(self.take(length)?) {
                Ok(label) if !label.contains('.') => text.push_str(label),
                _ => is_host = false,
            }
        }
        Some(match text.parse() {
            _ if size == 1 => QuestionName::Root,
            Ok(name) if is_host => QuestionName::Host(name),
            _ => QuestionName::Other,
        })
    }

    /// Reads an OPT record; returns its version.
    fn opt_record(&mut self) -> Option<u8> {
        if (self.u8()?, self.u16()?) != (0, TYPE_OPT) {
            return None;
        }
        let _payload_size = self.u16()?;
        let [_code, version, _, _] = *self.take(4)? else { return None };
        let length = self.u16()?;
        let mut options = Reader(self.take(length.into())?);
        while !options.0.is_empty() {
            let _option = options.u16()?;
            let length = options.u16()?;
            options.take(length.into())?;
        }
        Some(version)
    }
}

#[cfg(any(test, fuzzing))]
pub(crate) mod encoding {
    //! Queries, and a second parser for responses.

    use super::*;

    /// Writes a query with recursion desired.
    #[cfg(test)]
    pub(crate) fn query(id: u16, name: &str, kind: u16) -> Vec<u8> {
        let mut out: Vec<u8> = [id, FLAG_RECURSION_DESIRED, 1, 0, 0, 0].iter().flat_map(|f| f.to_be_bytes()).collect();
        for label in name.split('.').filter(|label| !label.is_empty()) {
            out.push(u8::try_from(label.len()).expect("a short label"));
            out.extend_from_slice(label.as_bytes());
        }
        out.push(0);
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&CLASS_IN.to_be_bytes());
        out
    }

    /// A response, as a stub resolver reads it.
    #[derive(Debug, PartialEq, Eq)]
    pub(crate) struct Response {
        pub(crate) id: u16,
        pub(crate) code: u16,
        pub(crate) has_question: bool,
        pub(crate) address: Option<Ipv4Addr>,
        /// The data of an answer that is not an address.
        pub(crate) other: Option<Vec<u8>>,
    }

    /// Parses a response to `query`. Panics if it is not a valid response to it.
    pub(crate) fn parse_response(query: &[u8], response: &[u8]) -> Response {
        assert!(response.len() <= 512);
        let mut reader = Reader(response);
        let mut field = || reader.u16().expect("a header");
        let (id, flags) = (field(), field());
        let [questions, answers, authorities, additional] = [field(), field(), field(), field()];
        assert_eq!((flags & FLAG_RESPONSE, flags & FLAG_TRUNCATED, authorities), (FLAG_RESPONSE, 0, 0));
        assert_eq!(query[..2], response[..2]);
        let (mut address, mut other) = (None, None);
        if questions == 1 {
            let rest = reader.0;
            reader.name().expect("a question");
            reader.take(4).expect("a type and class");
            let question = &rest[..rest.len() - reader.0.len()];
            assert_eq!(question, &query[HEADER_BYTES..HEADER_BYTES + question.len()]);
        }
        if answers == 1 {
            assert_eq!((questions, reader.u16()), (1, Some(0xc00c)));
            let kind = reader.u16().expect("a type");
            assert_eq!((reader.u16(), reader.take(4)), (Some(CLASS_IN), Some(&TTL_SECONDS.to_be_bytes()[..])));
            let length = reader.u16().expect("a length").into();
            let data = reader.take(length).expect("the data of the answer");
            if kind == TYPE_A {
                address = Some(<[u8; 4]>::try_from(data).expect("an address").into());
            } else {
                other = Some(data.to_vec());
            }
        }
        let mut code = flags & 0xf;
        if additional == 1 {
            assert_eq!(reader.take(5), Some(&[0, 0, 41, 4, 0xd0][..]));
            code |= u16::from(reader.u8().expect("upper bits")) << 4;
            assert_eq!(reader.take(5), Some(&[0; 5][..]));
        }
        assert!(reader.0.is_empty() && questions <= 1 && answers <= 1 && additional <= 1);
        Response { id, code, has_question: questions == 1, address, other }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn code(message: &[u8]) -> Option<Code> {
        match Query::parse(message) {
            Ok(_) => Some(Code::NoError),
            Err(QueryError::Refused { code, .. }) => Some(code),
            Err(QueryError::Ignored) => None,
        }
    }

    fn with(at: usize, byte: u8) -> Vec<u8> {
        let mut message = encoding::query(7, "a.test", TYPE_A);
        message[at] = byte;
        message
    }

    #[test]
    fn names_are_parsed_strictly() {
        let name = |labels: &[u8]| {
            let message = [&encoding::query(7, "", TYPE_A)[..12], labels, &[0, 1, 0, 1]].concat();
            Query::parse(&message).map(|query| query.name).ok()
        };
        let host = |text: &str| Some(QuestionName::Host(text.parse().unwrap()));
        assert_eq!(name(b"\x01A\x04TesT\0"), host("a.test"));
        assert_eq!(name(b"\0"), Some(QuestionName::Root));
        for other in
            [&b"\x03a.b\0"[..], b"\x01*\x01a\0", b"\x02\xc3\xbc\0", b"\x01\xff\0", b"\x01 \0", b"\x03127\x011\0"]
        {
            assert_eq!(name(other), Some(QuestionName::Other), "{other:?}");
        }
        for malformed in [&b"\xc0\x0c"[..], b"\x01a\xc0\x0c", b"\x41a\0", b"\x80\0", b"\x05a\0", b""] {
            assert_eq!(name(malformed), None, "{malformed:?}");
        }
        let longest = [b"\x3f".as_slice(), &[b'a'; 63]].concat().repeat(3);
        assert!(name(&[&longest, b"\x3d".as_slice(), &[b'a'; 61], b"\0"].concat()).is_some());
        assert!(name(&[&longest, b"\x3e".as_slice(), &[b'a'; 62], b"\0"].concat()).is_none());
    }

    #[test]
    fn only_plain_queries_are_accepted() {
        let query = encoding::query(7, "a.test", TYPE_A);
        assert_eq!(code(&query), Some(Code::NoError));
        for end in 0..query.len() {
            assert_eq!(code(&query[..end]), (end >= 12).then_some(Code::FormatError), "{end}");
        }
        assert_eq!(code(&[query.as_slice(), &[0]].concat()), Some(Code::FormatError));
        assert_eq!(code(&with(2, 0x80)), None, "a response");
        assert_eq!(code(&with(2, 0x28)), Some(Code::NotImplemented), "an update");
        assert_eq!(code(&with(2, 0x02)), Some(Code::FormatError), "truncated");
        assert_eq!(code(&with(5, 2)), Some(Code::FormatError), "two questions");
        assert_eq!(code(&with(5, 0)), Some(Code::FormatError), "no question");
        assert_eq!(code(&with(7, 1)), Some(Code::FormatError), "an answer");
        assert_eq!(code(&with(11, 1)), Some(Code::FormatError), "a missing record");
        assert_eq!(code(&with(11, 2)), Some(Code::FormatError), "two more records");
    }

    #[test]
    fn extension_is_tolerated() {
        let mut query = encoding::query(7, "a.test", TYPE_A);
        query[11] = 1;
        // With a cookie.
        query.extend_from_slice(b"\0\0\x29\x10\0\0\0\x80\0\0\x0c\0\x0a\0\x08abcdefgh");
        let parsed = Query::parse(&query).unwrap();
        assert_eq!(parsed.extension, Some(0));
        let response = encoding::parse_response(&query, &parsed.respond(Code::BadVersion, None));
        assert_eq!(response.code, 16);
        for (at, byte) in [(1, 1), (3, 40), (10, 0x0d), (14, 0x09)] {
            let mut damaged = query.clone();
            let start = damaged.len() - 23;
            damaged[start + at - 1] = byte;
            assert_eq!(code(&damaged), Some(Code::FormatError), "{at}");
        }
    }

    #[test]
    fn response_repeats_id_flags_and_question() {
        let mut query = encoding::query(0xabcd, "A.tEst", TYPE_A);
        query[3] = 0x10;
        let parsed = Query::parse(&query).unwrap();
        let response = parsed.respond(Code::NoError, Some(&Answer::Address(Ipv4Addr::new(198, 18, 0, 1))));
        assert_eq!(response[..4], [0xab, 0xcd, 0x81, 0x90]);
        assert_eq!(response[12..query.len()], query[12..]);
        assert_eq!(response[query.len()..], [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4, 198, 18, 0, 1]);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>, name: Vec<u8>, at: usize, byte: u8) {
            let _ = Query::parse(&bytes);
            let header = &encoding::query(1, "", TYPE_A)[..12];
            let _ = Query::parse(&[header, &name, &[0, 0, 1, 0, 1]].concat());
            let mut damaged = encoding::query(1, "a.example.test", TYPE_A);
            let at = at % damaged.len();
            damaged[at] = byte;
            if let Ok(query) = Query::parse(&damaged) {
                encoding::parse_response(&damaged, &query.respond(Code::NoError, None));
            }
        }
    }
}
