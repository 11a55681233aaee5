//! Recognises an HTTP/1 request by the first bytes of a connection.
//!
//! A pure function over the bytes seen so far. It calls more HTTP than a strict server would accept (leading blank lines,
//! any version, bare carriage returns), because whatever is called HTTP is parsed strictly afterwards, while everything
//! else may be relayed without further checks.

use super::head::token;

/// What the first line of a connection says about its protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FirstLine {
    /// The bytes may still become an HTTP request line.
    Undecided,
    Http,
    Other,
}

pub(super) fn classify(bytes: &[u8]) -> FirstLine {
    let text = bytes.trim_ascii_start();
    let end = text.iter().position(|&b| b == b'\n');
    let line = &text[..end.unwrap_or(text.len())];
    let method = line.split(|b| matches!(b, b' ' | b'\t' | b'\r')).next().unwrap_or_default();
    if !method.is_empty() && token(method).is_none() {
        return FirstLine::Other;
    }
    if line.windows(5).any(|part| part.eq_ignore_ascii_case(b"HTTP/")) {
        return FirstLine::Http;
    }
    if end.is_some() { FirstLine::Other } else { FirstLine::Undecided }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_recognised_in_every_spelling() {
        for text in [
            "GET / HTTP/1.1\r\n",
            "GET / HTTP/1.1",
            "get / http/1.1\n",
            "\r\n\r\nGET / HTTP/1.1\r\n",
            " \t GET / HTTP/1.1\r\n",
            "GET\t/\tHTTP/1.1\r\n",
            "GET / HTTP/1.1\rHost: evil.test\r\r",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "ANY-METHOD! * HTTP/9\r\n",
        ] {
            assert_eq!(classify(text.as_bytes()), FirstLine::Http, "{text:?}");
        }
    }

    #[test]
    fn other_protocols_are_not_requests() {
        for text in [
            &b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"[..],
            b"EHLO mail.example\r\n",
            b"*1\r\n$4\r\nPING\r\n",
            b"{\"id\":1}",
            b"\0\0\0\x08\x04\xd2\x16\x2f",
            b"\xff\xfb\x01",
        ] {
            assert_eq!(classify(text), FirstLine::Other, "{text:?}");
        }
    }

    #[test]
    fn half_a_line_is_undecided() {
        for text in ["", "\r\n", "G", "GET", "GET / HTT", "hello world"] {
            assert_eq!(classify(text.as_bytes()), FirstLine::Undecided, "{text:?}");
        }
    }
}
