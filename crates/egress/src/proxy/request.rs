//! Requests to the proxy: a `CONNECT` tunnel, or one plain request to forward.
//!
//! A request is either unambiguous or refused. The head for the server is written from the parsed values.

use crate::http::{BodyFraming, Head, HeadError, RequestLine, split_absolute_uri};
use crate::rules::HostPort;

/// A parsed request to the proxy.
#[derive(Debug)]
pub(crate) struct ProxyRequest {
    pub(crate) method: String,
    pub(crate) target: HostPort,
    pub(crate) kind: RequestKind,
}

#[derive(Debug)]
pub(crate) enum RequestKind {
    Tunnel,
    Forward(ForwardRequest),
}

/// A request to forward.
#[derive(Debug)]
pub(crate) struct ForwardRequest {
    /// The head as the server receives it.
    pub(crate) head: Vec<u8>,
    pub(crate) body: BodyFraming,
    pub(super) response_has_body: bool,
}

impl ProxyRequest {
    pub(crate) fn parse(head: &Head) -> Result<Self, HeadError> {
        let RequestLine { method, uri, version, body } = RequestLine::parse(head)?;
        if method == "CONNECT" {
            let target = HostPort::parse(uri, None).map_err(HeadError::Host)?;
            require_same_host(head, &target)?;
            if body != BodyFraming::Length(0) {
                return Err(HeadError::Malformed("CONNECT has a body"));
            }
            return Ok(Self { method: method.to_owned(), target, kind: RequestKind::Tunnel });
        }
        let (authority, path) = split_absolute_uri(uri)?;
        let target = HostPort::parse(authority, Some(80)).map_err(HeadError::Host)?;
        require_same_host(head, &target)?;
        let forward = ForwardRequest {
            head: write_forwarded_head(head, method, path, version, &target, body),
            body,
            response_has_body: method != "HEAD",
        };
        Ok(Self { method: method.to_owned(), target, kind: RequestKind::Forward(forward) })
    }
}

/// Refuses a Host field that differs from the destination, because a server would use the field.
fn require_same_host(head: &Head, target: &HostPort) -> Result<(), HeadError> {
    let mut hosts = head.values("host");
    let Some(host) = hosts.next() else {
        return Ok(());
    };
    let is_same = std::str::from_utf8(host)
        .ok()
        .and_then(|host| HostPort::parse(host, Some(target.port)).ok())
        .is_some_and(|host| host == *target);
    if is_same && hosts.next().is_none() { Ok(()) } else { Err(HeadError::HostMismatch) }
}

fn write_forwarded_head(
    head: &Head,
    method: &str,
    path: &str,
    version: &[u8],
    target: &HostPort,
    body: BodyFraming,
) -> Vec<u8> {
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut out = format!("{method} {slash}{path} ").into_bytes();
    out.extend_from_slice(version);
    let host = target.authority(80);
    out.extend_from_slice(format!("\r\nHost: {host}\r\n").as_bytes());
    head.write_end_to_end(&mut out);
    if body != BodyFraming::Length(0) || head.values("content-length").next().is_some() {
        body.write_field(&mut out);
    }
    out.extend_from_slice(b"Connection: close\r\n\r\n");
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<ProxyRequest, HeadError> {
        ProxyRequest::parse(&Head::parse(text.as_bytes())?)
    }

    fn forwarded(text: &str) -> String {
        match parse(text).unwrap().kind {
            RequestKind::Forward(forward) => String::from_utf8(forward.head).unwrap(),
            RequestKind::Tunnel => panic!("the request opens a tunnel"),
        }
    }

    #[test]
    fn connect_opens_tunnel() {
        for text in [
            "CONNECT A.com.:443 HTTP/1.1\r\nHost: a.com:443\r\n\r\n",
            "CONNECT a.com:443 HTTP/1.1\r\nHost: a.com\r\n\r\n",
            "CONNECT a.com:443 HTTP/1.0\r\n\r\n",
        ] {
            let request = parse(text).unwrap();
            assert_eq!(request.target.to_string(), "a.com:443");
            assert!(matches!(request.kind, RequestKind::Tunnel));
        }
    }

    #[test]
    fn requests_are_forwarded_in_origin_form() {
        assert_eq!(
            forwarded(
                "POST http://a.com:8080?q=1 HTTP/1.1\r\nHost: A.com:8080\r\nContent-Length: 03\r\n\
                 Connection: x-a\r\nX-A: 1\r\nX-B: 2\r\nUpgrade: websocket\r\n\r\n"
            ),
            "POST /?q=1 HTTP/1.1\r\nHost: a.com:8080\r\nX-B: 2\r\nContent-Length: 3\r\n\
             Connection: close\r\n\r\n"
        );
        assert_eq!(
            forwarded("GET HTTP://a.com/x/../y HTTP/1.0\r\n\r\n"),
            "GET /x/../y HTTP/1.0\r\nHost: a.com\r\nConnection: close\r\n\r\n"
        );
    }

    #[test]
    fn ambiguous_requests_are_refused() {
        for (text, code) in [
            ("GET / HTTP/1.1\r\nHost: a.com\r\n\r\n", "not-for-proxy"),
            ("GET ftp://a.com/ HTTP/1.1\r\n\r\n", "not-for-proxy"),
            ("GET https://a.com/ HTTP/1.1\r\n\r\n", "use-connect"),
            ("GET http://a.com/#x HTTP/1.1\r\n\r\n", "bad-request"),
            ("GET http://u@a.com/ HTTP/1.1\r\n\r\n", "bad-host"),
            ("GET http://a.com%00.b.com/ HTTP/1.1\r\n\r\n", "bad-host"),
            ("GET http://a.com\\@b.com/ HTTP/1.1\r\n\r\n", "bad-host"),
            ("GET http:///x HTTP/1.1\r\n\r\n", "bad-host"),
            ("GET http://0x7f.1/ HTTP/1.1\r\n\r\n", "bad-host"),
            ("GET http://[::ffff:7f00:1]/ HTTP/1.1\r\n\r\n", "bad-host"),
            ("GET  http://a.com/ HTTP/1.1\r\n\r\n", "bad-request"),
            ("GET http://a.com/ HTTP/2.0\r\n\r\n", "bad-request"),
            ("GET http://a.com/ HTTP/1.1 x\r\n\r\n", "bad-request"),
            ("GET http://a.com/\t HTTP/1.1\r\n\r\n", "bad-request"),
            ("GET http://a.com/é HTTP/1.1\r\n\r\n", "bad-request"),
            ("G{T http://a.com/ HTTP/1.1\r\n\r\n", "bad-request"),
            ("GET http://a.com/ HTTP/1.1\r\nHost: b.com\r\n\r\n", "host-mismatch"),
            ("GET http://a.com/ HTTP/1.1\r\nHost: a.com:81\r\n\r\n", "host-mismatch"),
            ("GET http://a.com/ HTTP/1.1\r\nHost: a.com\r\nHost: a.com\r\n\r\n", "host-mismatch"),
            ("GET http://a.com/ HTTP/1.1\r\nHost:\r\n\r\n", "host-mismatch"),
            ("GET http://a.com/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "bad-request"),
            ("CONNECT a.com HTTP/1.1\r\n\r\n", "bad-host"),
            ("CONNECT http://a.com:443 HTTP/1.1\r\n\r\n", "bad-host"),
            ("CONNECT a.com:443/x HTTP/1.1\r\n\r\n", "bad-host"),
            ("CONNECT a.com:443 HTTP/1.1\r\nHost: b.com:443\r\n\r\n", "host-mismatch"),
            ("CONNECT a.com:443 HTTP/1.1\r\nContent-Length: 5\r\n\r\n", "bad-request"),
        ] {
            assert_eq!(parse(text).unwrap_err().code(), code, "{text}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
            let _ = Head::parse(&bytes).and_then(|head| ProxyRequest::parse(&head));
        }

        /// A forwarded head has only one interpretation for the next reader.
        #[test]
        fn forwarded_head_is_one_request(
            uri in "http://a\\.com(/[!-~]{0,12})?",
            fields in prop::collection::vec((
                "Host|Content-Length|Transfer-Encoding|Connection|X-[a-z :]{1,3}",
                "a\\.com|b\\.com|[0-9]|chunked|[ -~\\r\\n\t\0]{0,6}",
            ), 0..5),
        ) {
            let lines: Vec<String> =
                fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            let text = format!("POST {uri} HTTP/1.1\r\n{}\r\n", lines.concat());
            if let Ok(ProxyRequest { kind: RequestKind::Forward(forward), .. }) = parse(&text) {
                let ends = forward.head.windows(4).filter(|w| w == b"\r\n\r\n").count();
                prop_assert_eq!(ends, 1);
                let head = Head::parse(&forward.head).unwrap();
                prop_assert_eq!(head.values("host").count(), 1);
                prop_assert_eq!(head.values("connection").collect::<Vec<_>>(), [b"close"]);
                let framing = BodyFraming::from_head(&head).unwrap().unwrap_or(BodyFraming::Length(0));
                prop_assert_eq!(framing, forward.body);
            }
        }
    }
}
