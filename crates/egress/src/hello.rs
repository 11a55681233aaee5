//! The server name in a TLS `ClientHello` (RFC 8446, 4.1.2; RFC 6066, 3).
//!
//! A pure function over the bytes seen so far. It accepts less than a server might: a greeting
//! that two parsers could read differently is malformed. It cannot see the name inside an encrypted
//! `ClientHello`, nor a second greeting after a retry.

/// The largest `ClientHello` that is looked at.
const MAX_HELLO: usize = 16 * 1024;
/// The largest plaintext record that TLS allows.
const MAX_RECORD: usize = 16 * 1024;
/// The most bytes that may hold a `ClientHello`, with the record headers around its pieces.
pub(super) const MAX_OPENING: usize = MAX_HELLO + 8 * 1024;

/// What the first bytes of a connection are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Opening {
    /// More bytes are needed.
    Incomplete,
    NotTls,
    Hello {
        server_name: Option<String>,
    },
    /// Begins like TLS, but is not a proper greeting.
    Malformed,
}

pub(super) fn inspect(bytes: &[u8]) -> Opening {
    match bytes {
        [] | [0x14..=0x18 | 0x80..=0x83] | [0x80..=0x83, _] | [0x80..=0x83, _, 1] => return Opening::Incomplete,
        [0x16, 3, ..] => {}
        // Servers skip an alert or another record before the ClientHello, which would then not be checked; a
        // ClientHello in SSL 2 format has no server name.
        [0x14 | 0x15 | 0x17 | 0x18, 3, ..] | [0x80..=0x83, _, 1, 3, ..] => return Opening::Malformed,
        _ => return Opening::NotTls,
    }
    match client_hello(bytes) {
        Ok(Some(hello)) => match server_name(&hello) {
            Ok(server_name) => Opening::Hello { server_name },
            Err(Malformed) => Opening::Malformed,
        },
        Ok(None) if bytes.len() < MAX_OPENING => Opening::Incomplete,
        Ok(None) | Err(Malformed) => Opening::Malformed,
    }
}

struct Malformed;

/// Joins the records of the greeting, if they are all there.
fn client_hello(mut rest: &[u8]) -> Result<Option<Vec<u8>>, Malformed> {
    let mut message = Vec::new();
    loop {
        let [kind, major, _, high, low, body @ ..] = rest else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if *kind != 0x16 || *major != 3 || length == 0 || length > MAX_RECORD {
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
        if *kind != 1 || length > MAX_HELLO || hello.len() > length {
            return Err(Malformed);
        }
        if hello.len() == length {
            return Ok(Some(hello.to_vec()));
        }
    }
}

/// Finds the server name, if the greeting has one.
fn server_name(hello: &[u8]) -> Result<Option<String>, Malformed> {
    let mut hello = Bytes(hello);
    hello.take(2 + 32)?; // version, random
    hello.short_vector()?; // session id
    hello.long_vector()?; // cipher suites
    hello.short_vector()?; // compression methods
    if hello.0.is_empty() {
        return Ok(None);
    }
    let mut extensions = Bytes(hello.long_vector()?);
    if !hello.0.is_empty() {
        return Err(Malformed);
    }
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.take(2)?;
        let mut data = Bytes(extensions.long_vector()?);
        if kind != [0, 0] {
            continue;
        }
        let mut names = Bytes(data.long_vector()?);
        let is_host_name = names.take(1)? == [0];
        let name = names.long_vector()?;
        let is_alone = names.0.is_empty() && data.0.is_empty() && found.is_none();
        if !is_host_name || !is_alone {
            return Err(Malformed);
        }
        found = Some(String::from_utf8(name.to_vec()).map_err(|_| Malformed)?);
    }
    Ok(found)
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn short_vector(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.take(1)?[0];
        self.take(length.into())
    }

    fn long_vector(&mut self) -> Result<&'a [u8], Malformed> {
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

    /// A greeting in records of at most `fragment` bytes.
    fn hello(extensions: &[u8], fragment: usize) -> Vec<u8> {
        let mut body = [&[3, 3], [7; 32].as_slice(), &[0, 0, 2, 0x13, 1, 1, 0]].concat();
        body.extend(vector(&[&[0xff, 1, 0, 1, 0], extensions].concat()));
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        let message = [&[1], &length[1..], &body].concat();
        message.chunks(fragment).flat_map(|piece| [&[0x16, 3, 1], vector(piece).as_slice()].concat()).collect()
    }

    /// A greeting without a server name.
    pub(crate) fn hello_to_nobody() -> Vec<u8> {
        hello(&[], MAX_RECORD)
    }

    /// A greeting in records of one byte each.
    pub(crate) fn hello_in_pieces(name: &str) -> Vec<u8> {
        hello(&sni(name), 1)
    }

    /// A greeting with a server name.
    pub(crate) fn hello_to(name: &str) -> Vec<u8> {
        hello(&sni(name), MAX_RECORD)
    }

    fn named(name: &str) -> Opening {
        Opening::Hello { server_name: Some(name.to_owned()) }
    }

    #[test]
    fn finds_the_name_however_it_is_cut() {
        for fragment in [1, 3, 4, 50, 10_000] {
            let bytes = hello(&sni("a.example"), fragment);
            assert_eq!(inspect(&bytes), named("a.example"));
            for end in 0..bytes.len() {
                assert_eq!(inspect(&bytes[..end]), Opening::Incomplete, "{end}");
            }
        }
        let bytes = [hello_to("a.example").as_slice(), b"more"].concat();
        assert_eq!(inspect(&bytes), named("a.example"));
        assert_eq!(inspect(&hello(&[], 99)), Opening::Hello { server_name: None });
    }

    #[test]
    fn doubtful_greetings_are_malformed() {
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
            assert_eq!(inspect(&hello(&extensions, 99)), Opening::Malformed);
        }
        assert_eq!(inspect(&[0x16, 3, 1, 0, 0]), Opening::Malformed);
        assert_eq!(inspect(&[0x16, 3, 1, 0, 4, 2, 0, 0, 0]), Opening::Malformed);
        assert_eq!(inspect(&[0x16, 3, 1, 0, 4, 1, 1, 0, 0]), Opening::Malformed);
        let endless: Vec<u8> = [0x16, 3, 1, 0x40, 0].into_iter().chain([1; 9]).collect();
        assert_eq!(inspect(&endless), Opening::Incomplete);
        let mut slivers = vec![0x16, 3, 1, 0, 4, 1, 0, 0x3f, 0xff];
        slivers.extend([0x16, 3, 1, 0, 1, 0].repeat(MAX_OPENING / 6));
        assert_eq!(inspect(&slivers), Opening::Malformed);
        let mut coalesced = hello(&sni("a"), MAX_RECORD);
        coalesced[4] += 1;
        coalesced.push(0);
        assert_eq!(inspect(&coalesced), Opening::Malformed);
        let after_an_alert = [&[0x15, 3, 1, 0, 2, 1, 0], hello_to("a").as_slice()].concat();
        assert_eq!(inspect(&after_an_alert), Opening::Malformed);
        assert_eq!(inspect(&[0x80, 0x2e, 1, 3, 1]), Opening::Malformed);
        assert_eq!(inspect(&[0x80, 0x2e, 2]), Opening::NotTls);
        assert_eq!(inspect(b"SSH-2.0"), Opening::NotTls);
        assert_eq!(inspect(&[0x16, 0x20]), Opening::NotTls);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>, at: usize, byte: u8) {
            inspect(&bytes);
            inspect(&[&[0x16, 3, 1, 0, 200, 1, 0, 0, 196], bytes.as_slice()].concat());
            let mut damaged = hello_to("a.example");
            let at = at % damaged.len();
            damaged[at] = byte;
            inspect(&damaged);
        }
    }
}
