//! The whole proxy over loopback sockets, as a guest meets it.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Mutex;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::hello::tests::{hello_to, hello_to_nobody};
use super::resolver::Resolver;
use super::{Decision, DecisionLog, Limits, Policy, Proxy};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Nothing in these tests takes long: what does is stuck.
async fn soon<T>(work: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(20), work).await.unwrap()
}

struct Rig {
    port: u16,
    decisions: mpsc::Receiver<Decision>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<std::io::Result<()>>,
}

fn start(rules: &[&str], answers: &[&[IpAddr]], limits: Limits) -> Rig {
    let (log, decisions) = DecisionLog::bounded(64);
    let answers = answers.iter().map(|answer| answer.to_vec()).collect();
    let proxy = Proxy::new(Policy::parse(rules.iter().copied()).unwrap(), log)
        .with_limits(limits)
        .with_resolver(Resolver::Scripted(Mutex::new(answers)));
    let listener = std::net::TcpListener::bind((LOOPBACK, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (stop, stopped) = oneshot::channel();
    let served = tokio::spawn(proxy.serve(listener, async {
        let _ = stopped.await;
    }));
    Rig { port, decisions, stop, served }
}

fn proxy(rules: &[&str], answers: &[&[IpAddr]]) -> Rig {
    start(rules, answers, Limits::default())
}

impl Rig {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect((LOOPBACK, self.port)).await.unwrap()
    }

    /// Sends bytes, and gives all that comes back.
    async fn ask(&self, request: &str) -> String {
        soon(async {
            let mut stream = self.connect().await;
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        })
        .await
    }

    /// Opens a tunnel that is allowed.
    async fn tunnel(&mut self, target: &str) -> TcpStream {
        let mut stream = self.connect().await;
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = [0; 39];
        soon(stream.read_exact(&mut answer)).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 Connection Established\r\n\r\n");
        assert_eq!(self.reason().await, "allowed");
        stream
    }

    async fn decision(&mut self) -> Decision {
        soon(self.decisions.recv()).await.unwrap()
    }

    async fn reason(&mut self) -> &'static str {
        self.decision().await.reason
    }
}

/// A server that answers each connection's first head, and tells all that it was sent on each.
struct Server {
    port: u16,
    seen: mpsc::Receiver<String>,
}

async fn server(answer: &str) -> Server {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, seen) = mpsc::channel(8);
    let answer = answer.to_owned();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut got = Vec::new();
            while !got.windows(4).any(|w| w == b"\r\n\r\n") {
                if stream.read_buf(&mut got).await.unwrap() == 0 {
                    break;
                }
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            let _ = stream.read_to_end(&mut got).await;
            let got = String::from_utf8_lossy(&got).into_owned();
            sender.send(got).await.unwrap();
        }
    });
    Server { port, seen }
}

fn get(authority: &str) -> String {
    format!("GET http://{authority}/x HTTP/1.1\r\nHost: {authority}\r\n\r\n")
}

#[tokio::test]
async fn a_plain_request_goes_to_an_allowed_address() {
    let mut server = server(OK).await;
    let authority = format!("127.0.0.1:{}", server.port);
    let mut rig = proxy(&[&authority], &[]);
    let answer = rig.ask(&get(&authority)).await;
    assert_eq!(answer, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
    assert_eq!(
        soon(server.seen.recv()).await.unwrap(),
        format!("GET /x HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n")
    );
    let decision = rig.decision().await;
    assert_eq!(
        decision,
        Decision {
            allowed: true,
            method: Some("GET".to_owned()),
            host: Some("127.0.0.1".parse().unwrap()),
            port: Some(server.port),
            address: Some(LOOPBACK),
            rule: Some(authority.parse().unwrap()),
            reason: "allowed",
        }
    );
}

#[tokio::test]
async fn refusals_say_what_would_help() {
    let mut rig = proxy(&["a.test"], &[&[LOOPBACK], &[LOOPBACK]]);
    for (target, reason, hint) in [
        ("b.test:443", "no-rule", "allow=b.test:443\n"),
        ("a.test:8443", "wrong-port", "allow=a.test:8443\n"),
        ("a.test:80", "private-address", "allow=a.test:80+private\n"),
        ("169.254.169.254:80", "no-rule", "allow=169.254.169.254:80"),
    ] {
        for request in [format!("CONNECT {target} HTTP/1.1\r\n\r\n"), format!("GET http://{target} HTTP/1.1\r\n\r\n")] {
            let answer = rig.ask(&request).await;
            assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
            assert!(answer.contains(&format!("X-Ringfence-Reason: {reason}\r\n")));
            assert!(answer.contains(hint), "{answer}");
            let decision = rig.decision().await;
            assert_eq!((decision.allowed, decision.reason), (false, reason));
        }
    }
}

#[tokio::test]
async fn a_refusal_reaches_a_guest_that_is_still_sending() {
    let rig = proxy(&[], &[]);
    let body = "x".repeat(8_000_000);
    let answer = rig.ask(&format!("POST http://a.test/ HTTP/1.1\r\nContent-Length: 8000000\r\n\r\n{body}")).await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
}

#[tokio::test]
async fn malformed_requests_are_answered() {
    let mut rig = proxy(&["*.test:*+private"], &[]);
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
        let answer = rig.ask(request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(answer.contains("\r\n\r\nringfence: "), "{answer}");
        assert_eq!(rig.reason().await, reason);
    }
}

#[tokio::test]
async fn a_closed_port_is_a_bad_gateway() {
    let free = std::net::TcpListener::bind((LOOPBACK, 0)).unwrap();
    let authority = free.local_addr().unwrap().to_string();
    drop(free);
    let mut rig = proxy(&[&authority], &[]);
    let answer = rig.ask(&get(&authority)).await;
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert_eq!(rig.reason().await, "connect-failed");
}

#[tokio::test]
async fn a_name_is_resolved_once_for_each_connection() {
    let mut server = server(OK).await;
    let authority = format!("a.test.:{}", server.port);
    let metadata = "169.254.169.254".parse().unwrap();
    let rule = "a.test:*+private";
    let mut rig = proxy(&[rule], &[&[LOOPBACK], &[metadata], &[LOOPBACK, metadata]]);
    assert!(rig.ask(&get(&authority)).await.ends_with("\r\n\r\nok"));
    assert!(soon(server.seen.recv()).await.is_some());
    assert_eq!(rig.decision().await.address, Some(LOOPBACK));
    for _ in 0..2 {
        assert!(rig.ask(&get(&authority)).await.contains("metadata"));
        assert_eq!(rig.reason().await, "metadata-address");
    }
    assert!(server.seen.try_recv().is_err());
}

#[tokio::test]
async fn a_redirect_is_judged_anew() {
    let private = "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.2/\r\nContent-Length: 0\r\n\r\n";
    let server = server(private).await;
    let authority = format!("127.0.0.1:{}", server.port);
    let mut rig = proxy(&[&authority], &[]);
    let answer = rig.ask(&get(&authority)).await;
    assert!(answer.contains("Location: http://127.0.0.2/\r\n"));
    assert_eq!(rig.reason().await, "allowed");
    rig.ask(&get("127.0.0.2")).await;
    assert_eq!(rig.reason().await, "no-rule");
}

#[tokio::test]
async fn a_second_request_is_not_sent_on() {
    let mut server = server(OK).await;
    let authority = format!("127.0.0.1:{}", server.port);
    let rig = proxy(&[&authority], &[]);
    for (fields, body, forwarded) in [
        ("Content-Length: 3", "abc", "abc"),
        ("Transfer-Encoding: chunked", "3;ext\r\nabc\r\n0\r\nX: y\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n"),
    ] {
        let answer =
            rig.ask(&format!("POST http://{authority}/ HTTP/1.1\r\n{fields}\r\n\r\n{body}{}", get("evil.test"))).await;
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
        let seen = soon(server.seen.recv()).await.unwrap();
        assert_eq!(seen.split_once("\r\n\r\n").unwrap().1, forwarded);
    }
}

#[tokio::test]
async fn a_tunnel_carries_bytes_both_ways_and_half_closes() {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut rig = proxy(&["a.test:*+private"], &[&[LOOPBACK]]);
    let mut guest = rig.tunnel(&format!("a.test:{port}")).await;
    let (mut far, _) = soon(listener.accept()).await.unwrap();

    far.write_all(b"220 first").await.unwrap();
    let mut banner = [0; 9];
    soon(guest.read_exact(&mut banner)).await.unwrap();
    assert_eq!(&banner, b"220 first");

    guest.write_all(b"HELO").await.unwrap();
    guest.shutdown().await.unwrap();
    let mut got = Vec::new();
    soon(far.read_to_end(&mut got)).await.unwrap();
    assert_eq!(got, b"HELO");

    far.write_all(b"221 bye").await.unwrap();
    drop(far);
    let mut rest = Vec::new();
    soon(guest.read_to_end(&mut rest)).await.unwrap();
    assert_eq!(rest, b"221 bye");
}

#[tokio::test]
async fn a_tunnel_to_another_server_name_is_closed() {
    let mut server = server(OK).await;
    let mut rig = proxy(&["a.test:*+private"], &[&[LOOPBACK]]);
    let mut guest = rig.tunnel(&format!("a.test:{}", server.port)).await;
    guest.write_all(&hello_to("evil.test")).await.unwrap();
    let decision = rig.decision().await;
    assert_eq!((decision.allowed, decision.reason), (false, "sni-mismatch"));
    assert_eq!(decision.host, Some("a.test".parse().unwrap()));
    assert_eq!(soon(server.seen.recv()).await.unwrap(), "");
    // closed, with or without a reset
    let _ = soon(guest.read_to_end(&mut Vec::new())).await;
}

#[tokio::test]
async fn a_tunnel_without_a_server_name_is_closed() {
    let mut server = server(OK).await;
    let mut rig = proxy(&["a.test:*+private"], &[&[LOOPBACK]]);
    let mut guest = rig.tunnel(&format!("a.test:{}", server.port)).await;
    guest.write_all(&hello_to_nobody()).await.unwrap();
    let decision = rig.decision().await;
    assert_eq!((decision.allowed, decision.reason), (false, "no-sni"));
    assert_eq!(soon(server.seen.recv()).await.unwrap(), "");
}

#[tokio::test]
async fn a_plain_request_in_a_tunnel_must_name_its_host() {
    let mut server = server(OK).await;
    let authority = format!("a.test:{}", server.port);
    let mut rig = proxy(&["a.test:*+private"], &[&[LOOPBACK], &[LOOPBACK]]);
    let mut guest = rig.tunnel(&authority).await;
    let request = |host: &str| format!("GET /x HTTP/1.1\r\nHost: {host}\r\n\r\n");
    guest.write_all(request(&authority).as_bytes()).await.unwrap();
    guest.shutdown().await.unwrap();
    let mut answer = String::new();
    soon(guest.read_to_string(&mut answer)).await.unwrap();
    assert_eq!(answer, OK);
    assert_eq!(soon(server.seen.recv()).await.unwrap(), request(&authority));

    let mut guest = rig.tunnel(&authority).await;
    guest.write_all(request("evil.test").as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon(guest.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
    assert!(answer.contains("X-Ringfence-Reason: host-mismatch\r\n"), "{answer}");
    assert_eq!(rig.reason().await, "host-mismatch");
    assert_eq!(soon(server.seen.recv()).await.unwrap(), "");
}

#[tokio::test]
async fn connections_beyond_the_limit_are_turned_away() {
    let limits = Limits { connections: 1, ..Limits::default() };
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let authority = listener.local_addr().unwrap().to_string();
    let mut rig = start(&[&authority], &[], limits);
    let guest = rig.tunnel(&authority).await;
    let answer = rig.ask(&get("a.test")).await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert_eq!(rig.reason().await, "too-many-connections");
    drop(guest);
    let (mut far, _) = soon(listener.accept()).await.unwrap();
    assert_eq!(soon(far.read(&mut [0])).await.unwrap(), 0);
    drop(far);
    soon(async { while !rig.ask(&get("a.test")).await.starts_with("HTTP/1.1 403 ") {} }).await;
}

#[tokio::test]
async fn shutdown_stops_all_traffic() {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let authority = listener.local_addr().unwrap().to_string();
    let mut rig = proxy(&[&authority], &[]);
    let mut guest = rig.tunnel(&authority).await;
    let (mut far, _) = soon(listener.accept()).await.unwrap();
    rig.stop.send(()).unwrap();
    soon(rig.served).await.unwrap().unwrap();
    assert!(matches!(soon(guest.read(&mut [0])).await, Ok(0) | Err(_)));
    assert!(matches!(soon(far.read(&mut [0])).await, Ok(0) | Err(_)));
    assert!(TcpStream::connect((LOOPBACK, rig.port)).await.is_err());
}

#[tokio::test]
async fn a_dropped_proxy_stops_all_traffic() {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let authority = listener.local_addr().unwrap().to_string();
    let mut rig = proxy(&[&authority], &[]);
    let mut guest = rig.tunnel(&authority).await;
    rig.served.abort();
    assert!(matches!(soon(guest.read(&mut [0])).await, Ok(0) | Err(_)));
}
