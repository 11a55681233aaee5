//! What a guest asks the proxy for: a tunnel, or one plain request to pass on.
//!
//! A request is either understood without doubt or refused; the head that goes to the server is
//! written anew from what was understood.

use super::body::Body;
use super::head::{Head, HeadError, token};
use super::host::Target;

const MAX_METHOD: usize = 32;

/// A request that was understood.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) target: Target,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    Tunnel,
    Forward(Forward),
}

/// A request to pass on.
#[derive(Debug)]
pub(super) struct Forward {
    /// As it goes to the server.
    pub(super) head: Vec<u8>,
    pub(super) body: Body,
    pub(super) answer_has_body: bool,
}

/// The request line, and how the body is framed.
#[derive(Debug)]
pub(super) struct RequestLine<'a> {
    pub(super) method: &'a str,
    pub(super) uri: &'a str,
    pub(super) version: &'a [u8],
    pub(super) body: Body,
}

impl<'a> RequestLine<'a> {
    pub(super) fn parse(head: &'a Head) -> Result<Self, HeadError> {
        let mut parts = head.start.split(|&b| b == b' ');
        let (Some(method), Some(uri), Some(version), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(HeadError::Malformed("the request line"));
        };
        let method =
            token(method).filter(|method| method.len() <= MAX_METHOD).ok_or(HeadError::Malformed("the method"))?;
        let uri = std::str::from_utf8(uri)
            .ok()
            .filter(|uri| uri.bytes().all(|b| b.is_ascii_graphic()))
            .ok_or(HeadError::Malformed("the request's target"))?;
        if !matches!(version, b"HTTP/1.0" | b"HTTP/1.1") {
            return Err(HeadError::Malformed("the protocol is not HTTP/1.1"));
        }
        let body = Body::of(head)?.unwrap_or(Body::Length(0));
        if version == b"HTTP/1.0" && body == Body::Chunked {
            return Err(HeadError::Malformed("chunks in HTTP/1.0"));
        }
        Ok(Self { method, uri, version, body })
    }
}

impl Request {
    pub(super) fn parse(head: &Head) -> Result<Self, HeadError> {
        let RequestLine { method, uri, version, body } = RequestLine::parse(head)?;
        if method == "CONNECT" {
            let target = Target::parse(uri, None).map_err(HeadError::Host)?;
            require_same_host(head, &target)?;
            if body != Body::Length(0) {
                return Err(HeadError::Malformed("CONNECT with a body"));
            }
            return Ok(Self { method: method.to_owned(), target, kind: Kind::Tunnel });
        }
        let (authority, path) = split_uri(uri)?;
        let target = Target::parse(authority, Some(80)).map_err(HeadError::Host)?;
        require_same_host(head, &target)?;
        let forward = Forward {
            head: forwarded_head(head, method, path, version, &target, body),
            body,
            answer_has_body: method != "HEAD",
        };
        Ok(Self { method: method.to_owned(), target, kind: Kind::Forward(forward) })
    }
}

/// Divides an absolute `http` URI into its authority and all that follows.
pub(super) fn split_uri(uri: &str) -> Result<(&str, &str), HeadError> {
    let (scheme, rest) = uri.split_once("://").ok_or(HeadError::NotForProxy)?;
    if scheme.eq_ignore_ascii_case("https") {
        return Err(HeadError::UseConnect);
    }
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(HeadError::NotForProxy);
    }
    if uri.contains('#') {
        return Err(HeadError::Malformed("a fragment in the request's target"));
    }
    Ok(rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len())))
}

/// Refuses a Host field that names another place: a server would believe the field.
fn require_same_host(head: &Head, target: &Target) -> Result<(), HeadError> {
    let mut hosts = head.all("host");
    let Some(host) = hosts.next() else {
        return Ok(());
    };
    let same = std::str::from_utf8(host)
        .ok()
        .and_then(|host| Target::parse(host, Some(target.port)).ok())
        .is_some_and(|host| host == *target);
    if same && hosts.next().is_none() { Ok(()) } else { Err(HeadError::HostMismatch) }
}

fn forwarded_head(head: &Head, method: &str, path: &str, version: &[u8], target: &Target, body: Body) -> Vec<u8> {
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut out = format!("{method} {slash}{path} ").into_bytes();
    out.extend_from_slice(version);
    let host = target.authority(80);
    out.extend_from_slice(format!("\r\nHost: {host}\r\n").as_bytes());
    head.write_end_to_end(&mut out);
    if body != Body::Length(0) || head.all("content-length").next().is_some() {
        body.write_field(&mut out);
    }
    out.extend_from_slice(b"Connection: close\r\n\r\n");
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Request, HeadError> {
        Request::parse(&Head::parse(text.as_bytes())?)
    }

    fn forwarded(text: &str) -> String {
        match parse(text).unwrap().kind {
            Kind::Forward(forward) => String::from_utf8(forward.head).unwrap(),
            Kind::Tunnel => panic!("a tunnel"),
        }
    }

    #[test]
    fn tunnels() {
        for text in [
            "CONNECT A.com.:443 HTTP/1.1\r\nHost: a.com:443\r\n\r\n",
            "CONNECT a.com:443 HTTP/1.1\r\nHost: a.com\r\n\r\n",
            "CONNECT a.com:443 HTTP/1.0\r\n\r\n",
        ] {
            let request = parse(text).unwrap();
            assert_eq!(request.target.to_string(), "a.com:443");
            assert!(matches!(request.kind, Kind::Tunnel));
        }
    }

    #[test]
    fn forwards_in_origin_form() {
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
    fn refused() {
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
        fn any_bytes_are_survived(bytes: Vec<u8>) {
            let _ = Head::parse(&bytes).and_then(|head| Request::parse(&head));
        }

        /// Whatever is let through is one unambiguous head for the next reader.
        #[test]
        fn what_is_forwarded_is_one_request(
            uri in "http://a\\.com(/[!-~]{0,12})?",
            fields in prop::collection::vec((
                "Host|Content-Length|Transfer-Encoding|Connection|X-[a-z :]{1,3}",
                "a\\.com|b\\.com|[0-9]|chunked|[ -~\\r\\n\t\0]{0,6}",
            ), 0..5),
        ) {
            let lines: Vec<String> =
                fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            let text = format!("POST {uri} HTTP/1.1\r\n{}\r\n", lines.concat());
            if let Ok(Request { kind: Kind::Forward(forward), .. }) = parse(&text) {
                let ends = forward.head.windows(4).filter(|w| w == b"\r\n\r\n").count();
                prop_assert_eq!(ends, 1);
                let head = Head::parse(&forward.head).unwrap();
                prop_assert_eq!(head.all("host").count(), 1);
                prop_assert_eq!(head.all("connection").collect::<Vec<_>>(), [b"close"]);
                let framing = Body::of(&head).unwrap().unwrap_or(Body::Length(0));
                prop_assert_eq!(framing, forward.body);
            }
        }
    }
}
