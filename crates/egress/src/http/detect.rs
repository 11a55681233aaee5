//! Detection of HTTP/1 requests by the first bytes of a connection.
//!
//! Detection accepts more than a strict server would (leading blank lines, any version, bare carriage returns): bytes
//! that are detected as HTTP are parsed strictly afterwards, while other bytes may be relayed without further checks.

use super::head::parse_token;

/// The result of HTTP detection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HttpDetection {
    /// More bytes are needed: the line may still become an HTTP request line.
    Undecided,
    Http,
    NotHttp,
}

/// Inspects the first bytes of a connection.
pub(crate) fn detect_http(bytes: &[u8]) -> HttpDetection {
    let text = bytes.trim_ascii_start();
    let end = text.iter().position(|&b| b == b'\n');
    let line = &text[..end.unwrap_or(text.len())];
    let method = line.split(|b| matches!(b, b' ' | b'\t' | b'\r')).next().unwrap_or_default();
    if !method.is_empty() && parse_token(method).is_none() {
        return HttpDetection::NotHttp;
    }
    if line.windows(5).any(|part| part.eq_ignore_ascii_case(b"HTTP/")) {
        return HttpDetection::Http;
    }
    if end.is_some() { HttpDetection::NotHttp } else { HttpDetection::Undecided }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_detected_in_every_spelling() {
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
            assert_eq!(detect_http(text.as_bytes()), HttpDetection::Http, "{text:?}");
        }
    }

    #[test]
    fn other_protocols_are_not_http() {
        for text in [
            &b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"[..],
            b"EHLO mail.example\r\n",
            b"*1\r\n$4\r\nPING\r\n",
            b"{\"id\":1}",
            b"\0\0\0\x08\x04\xd2\x16\x2f",
            b"\xff\xfb\x01",
        ] {
            assert_eq!(detect_http(text), HttpDetection::NotHttp, "{text:?}");
        }
    }

    #[test]
    fn incomplete_line_is_undecided() {
        for text in ["", "\r\n", "G", "GET", "GET / HTT", "hello world"] {
            assert_eq!(detect_http(text.as_bytes()), HttpDetection::Undecided, "{text:?}");
        }
    }
}
