//! Detection of a TLS `ClientHello` and its server name (RFC 8446, 4.1.2; RFC 6066, 3).
//!
//! The parser accepts less than a server might: a `ClientHello` that two parsers could read differently counts as
//! malformed. It sees neither the name inside an encrypted `ClientHello` nor a second `ClientHello` after a retry.

/// Maximum size of a `ClientHello`.
const MAX_HELLO_BYTES: usize = 16 * 1024;
/// Maximum size of a plaintext record in TLS.
const MAX_RECORD_BYTES: usize = 16 * 1024;
/// Maximum number of bytes to inspect: a `ClientHello` and the headers of the records that carry it.
pub(crate) const MAX_DETECTION_BYTES: usize = MAX_HELLO_BYTES + 8 * 1024;

/// The result of TLS detection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TlsDetection {
    /// More bytes are needed.
    Incomplete,
    NotTls,
    ClientHello {
        server_name: Option<String>,
    },
    /// The bytes start like TLS but are not a valid `ClientHello`.
    Malformed,
}

/// Inspects the first bytes of a connection.
pub(crate) fn detect_tls(bytes: &[u8]) -> TlsDetection {
    match bytes {
        [] | [0x14..=0x18 | 0x80..=0x83] | [0x80..=0x83, _] | [0x80..=0x83, _, 1] => return TlsDetection::Incomplete,
        [0x16, 3, ..] => {}
        // Servers skip an alert or another record before the ClientHello, and the ClientHello would not be checked. A
        // ClientHello in SSL 2 format has no server name.
        [0x14 | 0x15 | 0x17 | 0x18, 3, ..] | [0x80..=0x83, _, 1, 3, ..] => return TlsDetection::Malformed,
        _ => return TlsDetection::NotTls,
    }
    match join_records(bytes) {
        Ok(Some(hello)) => match find_server_name(&hello) {
            Ok(server_name) => TlsDetection::ClientHello { server_name },
            Err(Malformed) => TlsDetection::Malformed,
        },
        Ok(None) if bytes.len() < MAX_DETECTION_BYTES => TlsDetection::Incomplete,
        Ok(None) | Err(Malformed) => TlsDetection::Malformed,
    }
}

struct Malformed;

/// Joins the records of the `ClientHello`; returns `None` if some are still missing.
fn join_records(mut rest: &[u8]) -> Result<Option<Vec<u8>>, Malformed> {
    let mut message = Vec::new();
    loop {
        let [kind, major, _, high, low, body @ ..] = rest else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if *kind != 0x16 || *major != 3 || length == 0 || length > MAX_RECORD_BYTES {
            return Err(Malformed);
        }
        let Some((fragment, after)) = body.split_at_checked(length) else {
            return Ok(None);
        };
        message.extend_from_slice(fragment);
        rest = after;
        let [kind, a, b, c, hello @ ..] = message.as_slice() else {
            continue;
        };
        let length = usize::try_from(u32::from_be_bytes([0, *a, *b, *c])).map_err(|_| Malformed)?;
        if *kind != 1 || length > MAX_HELLO_BYTES || hello.len() > length {
            return Err(Malformed);
        }
        if hello.len() == length {
            return Ok(Some(hello.to_vec()));
        }
    }
}

/// Returns the server name of a `ClientHello`, if it has one.
fn find_server_name(hello: &[u8]) -> Result<Option<String>, Malformed> {
    let mut hello = ByteReader(hello);
    hello.take(2 + 32)?; // version, random
    hello.vector_u8()?; // session id
    hello.vector_u16()?; // cipher suites
    hello.vector_u8()?; // compression methods
    if hello.0.is_empty() {
        return Ok(None);
    }
    let mut extensions = ByteReader(hello.vector_u16()?);
    if !hello.0.is_empty() {
        return Err(Malformed);
    }
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.take(2)?;
        let mut data = ByteReader(extensions.vector_u16()?);
        if kind != [0, 0] {
            continue;
        }
        let mut names = ByteReader(data.vector_u16()?);
        let is_host_name = names.take(1)? == [0];
        let name = names.vector_u16()?;
        let is_only_name = names.0.is_empty() && data.0.is_empty() && found.is_none();
        if !is_host_name || !is_only_name {
            return Err(Malformed);
        }
        found = Some(String::from_utf8(name.to_vec()).map_err(|_| Malformed)?);
    }
    Ok(found)
}

struct ByteReader<'a>(&'a [u8]);

impl<'a> ByteReader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Reads a vector with a length of one byte.
    fn vector_u8(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.take(1)?[0];
        self.take(length.into())
    }

    /// Reads a vector with a length of two bytes.
    fn vector_u16(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.take(2)?;
        self.take(u16::from_be_bytes([length[0], length[1]]).into())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn vector(data: &[u8]) -> Vec<u8> {
        [&u16::try_from(data.len()).unwrap().to_be_bytes(), data].concat()
    }

    fn sni(name: &str) -> Vec<u8> {
        let list = [&[0], vector(name.as_bytes()).as_slice()].concat();
        [&[0, 0], vector(&vector(&list)).as_slice()].concat()
    }

    /// Builds a `ClientHello` in records of at most `fragment` bytes.
    fn hello(extensions: &[u8], fragment: usize) -> Vec<u8> {
        let mut body = [&[3, 3], [7; 32].as_slice(), &[0, 0, 2, 0x13, 1, 1, 0]].concat();
        body.extend(vector(&[&[0xff, 1, 0, 1, 0], extensions].concat()));
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        let message = [&[1], &length[1..], &body].concat();
        message.chunks(fragment).flat_map(|piece| [&[0x16, 3, 1], vector(piece).as_slice()].concat()).collect()
    }

    /// Builds a `ClientHello` without a server name.
    pub(crate) fn client_hello_without_name() -> Vec<u8> {
        hello(&[], MAX_RECORD_BYTES)
    }

    /// Builds a `ClientHello` in records of one byte each.
    pub(crate) fn client_hello_in_one_byte_records(name: &str) -> Vec<u8> {
        hello(&sni(name), 1)
    }

    /// Builds a `ClientHello` with a server name.
    pub(crate) fn client_hello(name: &str) -> Vec<u8> {
        hello(&sni(name), MAX_RECORD_BYTES)
    }

    fn hello_for(name: &str) -> TlsDetection {
        TlsDetection::ClientHello { server_name: Some(name.to_owned()) }
    }

    #[test]
    fn server_name_is_found_in_fragments_of_any_size() {
        for fragment in [1, 3, 4, 50, 10_000] {
            let bytes = hello(&sni("a.example"), fragment);
            assert_eq!(detect_tls(&bytes), hello_for("a.example"));
            for end in 0..bytes.len() {
                assert_eq!(detect_tls(&bytes[..end]), TlsDetection::Incomplete, "{end}");
            }
        }
        let bytes = [client_hello("a.example").as_slice(), b"more"].concat();
        assert_eq!(detect_tls(&bytes), hello_for("a.example"));
        assert_eq!(detect_tls(&hello(&[], 99)), TlsDetection::ClientHello { server_name: None });
    }

    #[test]
    fn ambiguous_client_hellos_are_malformed() {
        let two_names = {
            let entry = [&[0], vector(b"a").as_slice()].concat();
            let list = [entry.as_slice(), &entry].concat();
            [&[0, 0], vector(&vector(&list)).as_slice()].concat()
        };
        for extensions in [
            [sni("a"), sni("b")].concat(),
            two_names,
            [&[0, 0], vector(b"").as_slice()].concat(),
            [&[0, 0], vector(&vector(&[9, 0, 1, b'a'])).as_slice()].concat(),
            vec![0, 0, 0, 9, 1],
        ] {
            assert_eq!(detect_tls(&hello(&extensions, 99)), TlsDetection::Malformed);
        }
        assert_eq!(detect_tls(&[0x16, 3, 1, 0, 0]), TlsDetection::Malformed);
        assert_eq!(detect_tls(&[0x16, 3, 1, 0, 4, 2, 0, 0, 0]), TlsDetection::Malformed);
        assert_eq!(detect_tls(&[0x16, 3, 1, 0, 4, 1, 1, 0, 0]), TlsDetection::Malformed);
        let incomplete: Vec<u8> = [0x16, 3, 1, 0x40, 0].into_iter().chain([1; 9]).collect();
        assert_eq!(detect_tls(&incomplete), TlsDetection::Incomplete);
        let mut tiny_records = vec![0x16, 3, 1, 0, 4, 1, 0, 0x3f, 0xff];
        tiny_records.extend([0x16, 3, 1, 0, 1, 0].repeat(MAX_DETECTION_BYTES / 6));
        assert_eq!(detect_tls(&tiny_records), TlsDetection::Malformed);
        let mut coalesced = hello(&sni("a"), MAX_RECORD_BYTES);
        coalesced[4] += 1;
        coalesced.push(0);
        assert_eq!(detect_tls(&coalesced), TlsDetection::Malformed);
        let after_alert = [&[0x15, 3, 1, 0, 2, 1, 0], client_hello("a").as_slice()].concat();
        assert_eq!(detect_tls(&after_alert), TlsDetection::Malformed);
        assert_eq!(detect_tls(&[0x80, 0x2e, 1, 3, 1]), TlsDetection::Malformed);
        assert_eq!(detect_tls(&[0x80, 0x2e, 2]), TlsDetection::NotTls);
        assert_eq!(detect_tls(b"SSH-2.0"), TlsDetection::NotTls);
        assert_eq!(detect_tls(&[0x16, 0x20]), TlsDetection::NotTls);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>, at: usize, byte: u8) {
            detect_tls(&bytes);
            detect_tls(&[&[0x16, 3, 1, 0, 200, 1, 0, 0, 196], bytes.as_slice()].concat());
            let mut damaged = client_hello("a.example");
            let at = at % damaged.len();
            damaged[at] = byte;
            detect_tls(&damaged);
        }
    }
}
