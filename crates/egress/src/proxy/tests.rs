//! Tests of the whole proxy over loopback sockets, from the view of a guest.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::context::{Context, Limits};
use crate::egress::{Egress, loopback_sockets};
use crate::name_lookup::NameLookup;
use crate::tls::{client_hello, client_hello_without_name};
use crate::{Decision, DecisionLog, Policy, Rule, Source};

pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub(crate) const OK_RESPONSE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Fails the test if `work` takes so long that it must be stuck.
pub(crate) async fn within_timeout<T>(work: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(20), work).await.unwrap()
}

/// A running proxy.
struct TestProxy {
    port: u16,
    decisions: mpsc::Receiver<Decision>,
    egress: Egress,
}

fn start_proxy_with_limits(rules: &[&str], lookup_results: &[&[IpAddr]], limits: Limits) -> TestProxy {
    let (log, decisions) = DecisionLog::bounded(64);
    let policy = Policy::parse(rules.iter().copied()).unwrap();
    let context = Context { limits, lookup: NameLookup::scripted(lookup_results), ..Context::new(policy, log) };
    let sockets = loopback_sockets(Vec::new());
    let port = sockets.proxy.local_addr().unwrap().port();
    TestProxy { port, decisions, egress: Egress::start_with_context(sockets, context, None).unwrap() }
}

fn start_proxy(rules: &[&str], lookup_results: &[&[IpAddr]]) -> TestProxy {
    start_proxy_with_limits(rules, lookup_results, Limits::default())
}

impl TestProxy {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect((LOOPBACK, self.port)).await.unwrap()
    }

    /// Sends a request; returns the whole response.
    async fn request(&self, request: &str) -> String {
        within_timeout(async {
            let mut stream = self.connect().await;
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut response = String::new();
            stream.read_to_string(&mut response).await.unwrap();
            response
        })
        .await
    }

    /// Opens a tunnel that the rules allow.
    async fn open_tunnel(&mut self, target: &str) -> TcpStream {
        let mut stream = self.connect().await;
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = [0; 39];
        within_timeout(stream.read_exact(&mut response)).await.unwrap();
        assert_eq!(&response, b"HTTP/1.1 200 Connection Established\r\n\r\n");
        assert_eq!(self.next_reason().await, "allowed");
        stream
    }

    async fn next_decision(&mut self) -> Decision {
        within_timeout(self.decisions.recv()).await.unwrap()
    }

    async fn next_reason(&mut self) -> &'static str {
        self.next_decision().await.reason
    }
}

/// A server that responds to the first head of each connection and reports all bytes it received.
pub(crate) struct Server {
    pub(crate) port: u16,
    pub(crate) received: mpsc::Receiver<String>,
}

pub(crate) async fn start_server(response: &str) -> Server {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, received) = mpsc::channel(8);
    let response = response.to_owned();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            while !request.windows(4).any(|w| w == b"\r\n\r\n") {
                if stream.read_buf(&mut request).await.unwrap() == 0 {
                    break;
                }
            }
            stream.write_all(response.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            let _ = stream.read_to_end(&mut request).await;
            let request = String::from_utf8_lossy(&request).into_owned();
            sender.send(request).await.unwrap();
        }
    });
    Server { port, received }
}

fn get(authority: &str) -> String {
    format!("GET http://{authority}/x HTTP/1.1\r\nHost: {authority}\r\n\r\n")
}

#[tokio::test]
async fn plain_request_is_forwarded_to_allowed_address() {
    let mut server = start_server(OK_RESPONSE).await;
    let authority = format!("127.0.0.1:{}", server.port);
    let mut proxy = start_proxy(&[&authority], &[]);
    let response = proxy.request(&get(&authority)).await;
    assert_eq!(response, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
    assert_eq!(
        within_timeout(server.received.recv()).await.unwrap(),
        format!("GET /x HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n")
    );
    let decision = proxy.next_decision().await;
    assert_eq!(
        decision,
        Decision {
            source: Source::Proxy,
            is_allowed: true,
            method: Some("GET".to_owned()),
            host: Some("127.0.0.1".parse().unwrap()),
            port: Some(server.port),
            address: Some(LOOPBACK),
            rule: Some(authority.parse().unwrap()),
            reason: "allowed",
            ..Decision::default()
        }
    );
}

#[tokio::test]
async fn refusals_contain_reason_and_hint() {
    let mut proxy = start_proxy(&["a.test"], &[&[LOOPBACK], &[LOOPBACK]]);
    for (target, reason, hint) in [
        ("b.test:443", "no-rule", "allow=b.test\n"),
        ("a.test:8443", "wrong-port", "allow=a.test:8443\n"),
        ("a.test:80", "private-address", "allow=a.test+private\n"),
        ("169.254.169.254:80", "no-rule", "allow=169.254.169.254`"),
    ] {
        for request in [format!("CONNECT {target} HTTP/1.1\r\n\r\n"), format!("GET http://{target} HTTP/1.1\r\n\r\n")] {
            let response = proxy.request(&request).await;
            assert!(response.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{response}");
            assert!(response.contains(&format!("X-Ringfence-Reason: {reason}\r\n")));
            assert!(response.contains(hint), "{response}");
            let decision = proxy.next_decision().await;
            assert_eq!((decision.is_allowed, decision.reason), (false, reason));
        }
    }
}

#[tokio::test]
async fn refusal_reaches_guest_that_is_still_sending() {
    let proxy = start_proxy(&[], &[]);
    let body = "x".repeat(8_000_000);
    let response =
        proxy.request(&format!("POST http://a.test/ HTTP/1.1\r\nContent-Length: 8000000\r\n\r\n{body}")).await;
    assert!(response.starts_with("HTTP/1.1 403 "), "{response}");
}

#[tokio::test]
async fn malformed_requests_receive_a_response() {
    let mut proxy = start_proxy(&["*.test:*+private"], &[]);
    let large = format!("GET http://a.test/{} HTTP/1.1\r\n\r\n", "x".repeat(16_384));
    for (request, status, reason) in [
        ("nonsense\r\n\r\n", 400, "bad-request"),
        ("CONNECT a.test\0:80 HTTP/1.1\r\n\r\n", 400, "bad-request"),
        ("CONNECT 0x7f.1:80 HTTP/1.1\r\n\r\n", 400, "bad-host"),
        ("CONNECT a.test..:80 HTTP/1.1\r\n\r\n", 400, "bad-host"),
        ("GET https://a.test/ HTTP/1.1\r\n\r\n", 400, "use-connect"),
        (large.as_str(), 431, "head-too-large"),
        ("CONNECT a.test:80 HTTP/1.1\r\n\r\n", 502, "resolve-failed"),
    ] {
        let response = proxy.request(request).await;
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{response}");
        assert!(response.contains("\r\n\r\nringfence: "), "{response}");
        assert_eq!(proxy.next_reason().await, reason);
    }
}

#[tokio::test]
async fn closed_port_is_bad_gateway() {
    let free = std::net::TcpListener::bind((LOOPBACK, 0)).unwrap();
    let authority = free.local_addr().unwrap().to_string();
    drop(free);
    let mut proxy = start_proxy(&[&authority], &[]);
    let response = proxy.request(&get(&authority)).await;
    assert!(response.starts_with("HTTP/1.1 502 "), "{response}");
    assert_eq!(proxy.next_reason().await, "connect-failed");
}

#[tokio::test]
async fn name_is_resolved_once_per_connection() {
    let mut server = start_server(OK_RESPONSE).await;
    let authority = format!("a.test.:{}", server.port);
    let metadata = "169.254.169.254".parse().unwrap();
    let rule = "a.test:*+private";
    let mut proxy = start_proxy(&[rule], &[&[LOOPBACK], &[metadata], &[LOOPBACK, metadata]]);
    assert!(proxy.request(&get(&authority)).await.ends_with("\r\n\r\nok"));
    assert!(within_timeout(server.received.recv()).await.is_some());
    assert_eq!(proxy.next_decision().await.address, Some(LOOPBACK));
    for _ in 0..2 {
        assert!(proxy.request(&get(&authority)).await.contains("metadata"));
        assert_eq!(proxy.next_reason().await, "metadata-address");
    }
    assert!(server.received.try_recv().is_err());
}

#[tokio::test]
async fn redirect_is_checked_as_a_new_request() {
    let private = "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.2/\r\nContent-Length: 0\r\n\r\n";
    let server = start_server(private).await;
    let authority = format!("127.0.0.1:{}", server.port);
    let mut proxy = start_proxy(&[&authority], &[]);
    let response = proxy.request(&get(&authority)).await;
    assert!(response.contains("Location: http://127.0.0.2/\r\n"));
    assert_eq!(proxy.next_reason().await, "allowed");
    proxy.request(&get("127.0.0.2")).await;
    assert_eq!(proxy.next_reason().await, "no-rule");
}

#[tokio::test]
async fn second_request_on_connection_is_not_forwarded() {
    let mut server = start_server(OK_RESPONSE).await;
    let authority = format!("127.0.0.1:{}", server.port);
    let proxy = start_proxy(&[&authority], &[]);
    for (fields, body, forwarded) in [
        ("Content-Length: 3", "abc", "abc"),
        ("Transfer-Encoding: chunked", "3;ext\r\nabc\r\n0\r\nX: y\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n"),
    ] {
        let response = proxy
            .request(&format!("POST http://{authority}/ HTTP/1.1\r\n{fields}\r\n\r\n{body}{}", get("evil.test")))
            .await;
        assert_eq!(response.matches("HTTP/1.1").count(), 1, "{response}");
        let received = within_timeout(server.received.recv()).await.unwrap();
        assert_eq!(received.split_once("\r\n\r\n").unwrap().1, forwarded);
    }
}

#[tokio::test]
async fn tunnel_relays_both_directions_and_half_close() {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut proxy = start_proxy(&["a.test:*+private"], &[&[LOOPBACK]]);
    let mut guest = proxy.open_tunnel(&format!("a.test:{port}")).await;
    let (mut server, _) = within_timeout(listener.accept()).await.unwrap();

    server.write_all(b"220 first").await.unwrap();
    let mut banner = [0; 9];
    within_timeout(guest.read_exact(&mut banner)).await.unwrap();
    assert_eq!(&banner, b"220 first");

    guest.write_all(b"HELO").await.unwrap();
    guest.shutdown().await.unwrap();
    let mut received = Vec::new();
    within_timeout(server.read_to_end(&mut received)).await.unwrap();
    assert_eq!(received, b"HELO");

    server.write_all(b"221 bye").await.unwrap();
    drop(server);
    let mut rest = Vec::new();
    within_timeout(guest.read_to_end(&mut rest)).await.unwrap();
    assert_eq!(rest, b"221 bye");
}

#[tokio::test]
async fn tunnel_with_other_server_name_is_closed() {
    let mut server = start_server(OK_RESPONSE).await;
    let mut proxy = start_proxy(&["a.test:*+private"], &[&[LOOPBACK]]);
    let mut guest = proxy.open_tunnel(&format!("a.test:{}", server.port)).await;
    guest.write_all(&client_hello("evil.test")).await.unwrap();
    let decision = proxy.next_decision().await;
    assert_eq!((decision.is_allowed, decision.reason), (false, "sni-mismatch"));
    assert_eq!(decision.host, Some("a.test".parse().unwrap()));
    assert_eq!(within_timeout(server.received.recv()).await.unwrap(), "");
    // The tunnel is closed, with or without a reset.
    let _ = within_timeout(guest.read_to_end(&mut Vec::new())).await;
}

#[tokio::test]
async fn tunnel_without_server_name_is_closed() {
    let mut server = start_server(OK_RESPONSE).await;
    let mut proxy = start_proxy(&["a.test:*+private"], &[&[LOOPBACK]]);
    let mut guest = proxy.open_tunnel(&format!("a.test:{}", server.port)).await;
    guest.write_all(&client_hello_without_name()).await.unwrap();
    let decision = proxy.next_decision().await;
    assert_eq!((decision.is_allowed, decision.reason), (false, "no-sni"));
    assert_eq!(within_timeout(server.received.recv()).await.unwrap(), "");
}

#[tokio::test]
async fn plain_request_in_tunnel_must_name_tunnel_host() {
    let mut server = start_server(OK_RESPONSE).await;
    let authority = format!("a.test:{}", server.port);
    let mut proxy = start_proxy(&["a.test:*+private"], &[&[LOOPBACK], &[LOOPBACK]]);
    let mut guest = proxy.open_tunnel(&authority).await;
    let request = |host: &str| format!("GET /x HTTP/1.1\r\nHost: {host}\r\n\r\n");
    guest.write_all(request(&authority).as_bytes()).await.unwrap();
    guest.shutdown().await.unwrap();
    let mut response = String::new();
    within_timeout(guest.read_to_string(&mut response)).await.unwrap();
    assert_eq!(response, OK_RESPONSE);
    assert_eq!(within_timeout(server.received.recv()).await.unwrap(), request(&authority));

    let mut guest = proxy.open_tunnel(&authority).await;
    guest.write_all(request("evil.test").as_bytes()).await.unwrap();
    let mut response = String::new();
    within_timeout(guest.read_to_string(&mut response)).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{response}");
    assert!(response.contains("X-Ringfence-Reason: host-mismatch\r\n"), "{response}");
    assert_eq!(proxy.next_reason().await, "host-mismatch");
    assert_eq!(within_timeout(server.received.recv()).await.unwrap(), "");
}

#[tokio::test]
async fn connections_over_limit_are_rejected() {
    let limits = Limits { max_connections: 1, ..Limits::default() };
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let authority = listener.local_addr().unwrap().to_string();
    let mut proxy = start_proxy_with_limits(&[&authority], &[], limits);
    let guest = proxy.open_tunnel(&authority).await;
    let response = proxy.request(&get("a.test")).await;
    assert!(response.starts_with("HTTP/1.1 503 "), "{response}");
    assert_eq!(proxy.next_reason().await, "too-many-connections");
    drop(guest);
    let (mut server, _) = within_timeout(listener.accept()).await.unwrap();
    assert_eq!(within_timeout(server.read(&mut [0])).await.unwrap(), 0);
    drop(server);
    within_timeout(async { while !proxy.request(&get("a.test")).await.starts_with("HTTP/1.1 403 ") {} }).await;
}

#[tokio::test]
async fn dropping_egress_stops_all_traffic() {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let authority = listener.local_addr().unwrap().to_string();
    let mut proxy = start_proxy(&[&authority], &[]);
    let mut guest = proxy.open_tunnel(&authority).await;
    let (mut server, _) = within_timeout(listener.accept()).await.unwrap();
    let other_handle = proxy.egress.clone();
    drop(proxy.egress);
    server.write_all(b"x").await.unwrap();
    assert_eq!(within_timeout(guest.read(&mut [0])).await.unwrap(), 1);
    drop(other_handle);
    assert!(matches!(within_timeout(guest.read(&mut [0])).await, Ok(0) | Err(_)));
    assert!(matches!(within_timeout(server.read(&mut [0])).await, Ok(0) | Err(_)));
    within_timeout(async { while TcpStream::connect((LOOPBACK, proxy.port)).await.is_ok() {} }).await;
}

#[tokio::test]
async fn added_rule_applies_to_the_next_request() {
    let mut server = start_server(OK_RESPONSE).await;
    let authority = format!("127.0.0.1:{}", server.port);
    let mut proxy = start_proxy(&[], &[]);
    assert!(proxy.request(&get(&authority)).await.starts_with("HTTP/1.1 403 "));
    assert_eq!(proxy.next_reason().await, "no-rule");
    let rule: Rule = authority.parse().unwrap();
    proxy.egress.allow(rule.clone());
    assert_eq!(proxy.egress.rules(), [rule]);
    assert!(proxy.request(&get(&authority)).await.ends_with("ok"));
    assert!(within_timeout(server.received.recv()).await.is_some());
}
