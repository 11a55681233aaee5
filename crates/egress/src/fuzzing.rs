//! Entry point of the fuzz target `egress_heads`.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::body::Body;
use super::forward::Answer;
use super::head::{Head, HeadError};
use super::hello::{Opening, inspect};
use super::host::{Host, Target};
use super::relay::Idle;
use super::request::{Kind, Request};
use super::rule::Rule;

const MAX_HEAD: usize = 16 * 1024;

/// Reads what a hostile guest or server sends. The first byte selects the reader.
pub fn egress_heads(data: &[u8]) {
    let [reader, rest @ ..] = data else { return };
    match reader % 4 {
        0 => request(rest),
        1 => answer(rest),
        2 => hello(rest),
        _ => names(rest),
    }
}

/// The result of a future that only reads from memory.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("waits for more than the input"),
    }
}

fn request(mut input: &[u8]) {
    let Ok(head) = now(Head::read(&mut input, MAX_HEAD)) else { return };
    let Ok(request) = Request::parse(&head) else { return };
    let target = request.target.to_string();
    assert_eq!(Target::parse(&target, None).expect("a target"), request.target);
    let Kind::Forward(forward) = &request.kind else { return };

    // The server must parse the same request as the proxy.
    let Some(sent) = read_again(&forward.head) else { return };
    let parts: Vec<&[u8]> = sent.start.split(|byte| *byte == b' ').collect();
    assert!(parts.len() == 3 && parts[0] == request.method.as_bytes() && parts[1].starts_with(b"/"));
    let host: Vec<&[u8]> = sent.all("host").collect();
    assert_eq!(host.len(), 1);
    let host = std::str::from_utf8(host[0]).expect("text");
    assert_eq!(Target::parse(host, Some(80)).expect("a host"), request.target);
    assert_eq!(Body::of(&sent).expect("one length").unwrap_or(Body::Length(0)), forward.body);
    end_to_end(&sent);
    body(forward.body, input);
}

fn answer(mut input: &[u8]) {
    let Some((has_body, rest)) = input.split_first() else { return };
    input = rest;
    let Ok(answer) = now(Answer::read(&mut input, has_body & 1 == 1)) else { return };
    let Some(sent) = read_again(&answer.head) else { return };
    let framing = Body::of(&sent).expect("one length");
    let Some(expected) = answer.body else {
        assert_eq!(framing, None, "an interim answer has no body");
        return;
    };
    end_to_end(&sent);
    assert!(expected == Body::Length(0) || framing.unwrap_or(Body::UntilClose) == expected);
    body(expected, input);
}

/// Parses a head that the proxy has written. It may exceed the field limit for input, because the proxy adds up to
/// three.
fn read_again(written: &[u8]) -> Option<Head> {
    match Head::parse(written) {
        Err(HeadError::TooLarge) => None,
        head => Some(head.expect("a head")),
    }
}

/// Asserts that no hop-by-hop field is forwarded, except those that the proxy adds.
fn end_to_end(sent: &Head) {
    assert_eq!(sent.all("connection").collect::<Vec<_>>(), [b"close"]);
    for field in &sent.fields {
        let name = field.name.to_ascii_lowercase();
        assert!(!name.starts_with("proxy-") && !name.starts_with("x-ringfence-"), "{name}");
        assert!(!["keep-alive", "te", "trailer", "upgrade", "http2-settings"].contains(&name.as_str()), "{name}");
    }
}

/// Asserts that a body is copied up to its end and no further, and that copying the copy gives the same bytes.
fn body(body: Body, input: &[u8]) {
    let idle = Idle::new(Duration::from_secs(1));
    let copy = |mut from: &[u8]| {
        let mut to = Vec::new();
        let done = now(body.copy(&mut from, &mut to, &idle)).is_ok();
        (done, to, from.len())
    };
    let (done, copied, left) = copy(input);
    if let Body::Length(length) = body {
        assert!(input.starts_with(&copied) && copied.len() as u64 <= length);
        assert_eq!(done, copied.len() as u64 == length);
    }
    if done {
        assert!(left <= input.len());
        assert_eq!(copy(&copied), (true, copied.clone(), 0));
    }
}

/// Asserts that later bytes do not change a decision about the first bytes.
fn hello(input: &[u8]) {
    let Some((cut, bytes)) = input.split_first() else { return };
    let first = inspect(&bytes[..usize::from(*cut).min(bytes.len())]);
    let whole = inspect(bytes);
    assert!(first == Opening::Incomplete || first == whole, "{first:?}, then {whole:?}");
}

fn names(input: &[u8]) {
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
    if let Ok(target) = Target::parse(text, Some(80)) {
        assert_eq!(Target::parse(&target.to_string(), None).expect("a target"), target);
    }
}
