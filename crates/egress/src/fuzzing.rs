//! Entry points of the fuzz targets `egress_heads` and `egress_dns`.

mod dns;

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::http::{BodyFraming, Head, HeadError, MAX_REQUEST_HEAD_BYTES};
use crate::proxy::{ProxyRequest, RequestKind, ResponseHead};
use crate::relay::IdleTimer;
use crate::rules::{Host, HostPort, Rule};
use crate::tls::{TlsDetection, detect_tls};

pub use dns::egress_dns;

/// Parses the input of a hostile guest or server. The first byte selects the parser.
pub fn egress_heads(data: &[u8]) {
    let [parser, rest @ ..] = data else { return };
    match parser % 4 {
        0 => check_request(rest),
        1 => check_response(rest),
        2 => check_tls(rest),
        _ => check_names(rest),
    }
}

/// Returns the result of a future that only reads from memory.
fn poll_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future waits although all input is in memory"),
    }
}

fn check_request(mut input: &[u8]) {
    let Ok(head) = poll_once(Head::read(&mut input, MAX_REQUEST_HEAD_BYTES)) else { return };
    let Ok(request) = ProxyRequest::parse(&head) else { return };
    let target = request.target.to_string();
    assert_eq!(HostPort::parse(&target, None).expect("a target"), request.target);
    let RequestKind::Forward(forward) = &request.kind else { return };

    // The server must parse the same request as the proxy.
    let Some(sent) = reparse(&forward.head) else { return };
    let parts: Vec<&[u8]> = sent.start_line.split(|byte| *byte == b' ').collect();
    assert!(parts.len() == 3 && parts[0] == request.method.as_bytes() && parts[1].starts_with(b"/"));
    let host: Vec<&[u8]> = sent.values("host").collect();
    assert_eq!(host.len(), 1);
    let host = std::str::from_utf8(host[0]).expect("text");
    assert_eq!(HostPort::parse(host, Some(80)).expect("a host"), request.target);
    assert_eq!(BodyFraming::from_head(&sent).expect("one length").unwrap_or(BodyFraming::Length(0)), forward.body);
    assert_end_to_end(&sent);
    check_body(forward.body, input);
}

fn check_response(mut input: &[u8]) {
    let Some((has_body, rest)) = input.split_first() else { return };
    input = rest;
    let Ok(response) = poll_once(ResponseHead::read(&mut input, has_body & 1 == 1)) else { return };
    let Some(sent) = reparse(&response.head) else { return };
    let framing = BodyFraming::from_head(&sent).expect("one length");
    let Some(expected) = response.body else {
        assert_eq!(framing, None, "an interim response has no body");
        return;
    };
    assert_end_to_end(&sent);
    assert!(expected == BodyFraming::Length(0) || framing.unwrap_or(BodyFraming::UntilClose) == expected);
    check_body(expected, input);
}

/// Parses a head that the proxy has written. It may exceed the field limit for input, because the proxy adds up to
/// three.
fn reparse(written: &[u8]) -> Option<Head> {
    match Head::parse(written) {
        Err(HeadError::TooLarge) => None,
        head => Some(head.expect("a head")),
    }
}

/// Asserts that no hop-by-hop field is forwarded, except those that the proxy adds.
fn assert_end_to_end(sent: &Head) {
    assert_eq!(sent.values("connection").collect::<Vec<_>>(), [b"close"]);
    for field in &sent.fields {
        let name = field.name.to_ascii_lowercase();
        assert!(!name.starts_with("proxy-") && !name.starts_with("x-ringfence-"), "{name}");
        assert!(!["keep-alive", "te", "trailer", "upgrade", "http2-settings"].contains(&name.as_str()), "{name}");
    }
}

/// Asserts that a body is copied up to its end and no further, and that copying the copy gives the same bytes.
fn check_body(body: BodyFraming, input: &[u8]) {
    let idle = IdleTimer::new(Duration::from_secs(1));
    let copy = |mut from: &[u8]| {
        let mut to = Vec::new();
        let done = poll_once(body.copy(&mut from, &mut to, &idle)).is_ok();
        (done, to, from.len())
    };
    let (done, copied, left) = copy(input);
    if let BodyFraming::Length(length) = body {
        assert!(input.starts_with(&copied) && copied.len() as u64 <= length);
        assert_eq!(done, copied.len() as u64 == length);
    }
    if done {
        assert!(left <= input.len());
        assert_eq!(copy(&copied), (true, copied.clone(), 0));
    }
}

/// Asserts that later bytes do not change a decision about the first bytes.
fn check_tls(input: &[u8]) {
    let Some((cut, bytes)) = input.split_first() else { return };
    let first = detect_tls(&bytes[..usize::from(*cut).min(bytes.len())]);
    let whole = detect_tls(bytes);
    assert!(first == TlsDetection::Incomplete || first == whole, "{first:?}, then {whole:?}");
}

fn check_names(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(rule) = text.parse::<Rule>() {
        assert_eq!(rule.to_string().parse::<Rule>().expect("a rule"), rule);
    }
    if let Ok(host) = text.parse::<Host>() {
        let shown = host.to_string();
        assert_eq!(shown.parse::<Host>().expect("a host"), host);
        assert!(shown.bytes().all(|byte| byte.is_ascii_graphic()));
        // A name that the C library reads as an address would not be the host that was checked.
        assert!(matches!(host, Host::Address(_)) || shown.parse::<std::net::IpAddr>().is_err());
    }
    if let Ok(target) = HostPort::parse(text, Some(80)) {
        assert_eq!(HostPort::parse(&target.to_string(), None).expect("a target"), target);
    }
}
