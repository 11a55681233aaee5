//! Tests of transparent connections, over loopback addresses and in memory.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ringfence_core::sync::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::*;
use crate::approvals::{Approval, ApprovalGate, ApprovalRequest, Approvals};
use crate::egress::{Egress, loopback_sockets};
use crate::name_lookup::NameLookup;
use crate::name_table::NameTable;
use crate::proxy::{LOOPBACK, OK_RESPONSE, start_server, within_timeout};
use crate::remedy::Remedy;
use crate::tls::{client_hello, client_hello_without_name};
use crate::{DecisionLog, Policy};

/// A range whose addresses are local without a route.
const RANGE: Ipv4Addr = Ipv4Addr::new(127, 18, 0, 0);
/// The address of `a.test`.
const FIRST: Ipv4Addr = Ipv4Addr::new(127, 18, 0, 1);

fn context(rules: &[&str], lookup_results: &[&[IpAddr]]) -> (Context, mpsc::Receiver<Decision>) {
    let (log, decisions) = DecisionLog::bounded(64);
    let policy = Policy::parse(rules.iter().copied()).unwrap();
    let names = NameTable::with_range(RANGE, 16);
    names.address_of(&"a.test".parse().unwrap()).unwrap();
    let lookup = NameLookup::scripted(lookup_results);
    let remedy = Mutex::new(Remedy::Session("s1".to_owned()));
    (Context { names, lookup, remedy, ..Context::new(policy, log) }, decisions)
}

/// A sandbox whose guest can dial `a.test` on the port of a server of the host.
struct Sandbox {
    egress: Egress,
    port: u16,
    decisions: mpsc::Receiver<Decision>,
}

fn start(port: u16, (context, decisions): (Context, mpsc::Receiver<Decision>)) -> Sandbox {
    let listener = std::net::TcpListener::bind((FIRST, port)).unwrap();
    let egress = Egress::start_with_context(loopback_sockets(vec![listener]), context, None).unwrap();
    assert_eq!(egress.ports(), [port]);
    Sandbox { egress, port, decisions }
}

impl Sandbox {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect((FIRST, self.port)).await.unwrap()
    }

    /// Sends `bytes`; returns everything that the guest receives.
    async fn exchange(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect().await;
        stream.write_all(bytes).await.unwrap();
        let mut received = Vec::new();
        within_timeout(stream.read_to_end(&mut received)).await.unwrap();
        received
    }

    async fn exchange_text(&self, text: &str) -> String {
        String::from_utf8(self.exchange(text.as_bytes()).await).unwrap()
    }

    async fn next_decision(&mut self) -> Decision {
        within_timeout(self.decisions.recv()).await.unwrap()
    }

    async fn next_reason(&mut self) -> &'static str {
        self.next_decision().await.reason
    }
}

fn get(host: &str) -> String {
    format!("GET /x HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

#[tokio::test]
async fn connection_reaches_the_dialled_name() {
    let mut server = start_server(OK_RESPONSE).await;
    let mut sandbox = start(server.port, context(&["a.test:*+private"], &[&[LOOPBACK]]));
    let request = get(&format!("a.test:{}", server.port));
    let mut guest = sandbox.connect().await;
    guest.write_all(request.as_bytes()).await.unwrap();
    guest.shutdown().await.unwrap();
    let mut response = String::new();
    within_timeout(guest.read_to_string(&mut response)).await.unwrap();
    assert_eq!(response, OK_RESPONSE);
    assert_eq!(within_timeout(server.received.recv()).await.unwrap(), request);
    assert_eq!(
        sandbox.next_decision().await,
        Decision {
            source: Source::Transparent,
            is_allowed: true,
            method: None,
            host: Some("a.test".parse().unwrap()),
            port: Some(server.port),
            address: Some(LOOPBACK),
            rule: Some("a.test:*+private".parse().unwrap()),
            reason: "allowed",
            package: None,
            secret: None,
        }
    );
}

#[tokio::test]
async fn server_that_sends_first_is_relayed() {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let sandbox = start(port, context(&["a.test:*+private"], &[&[LOOPBACK]]));
    let mut guest = sandbox.connect().await;
    let (mut server, _) = within_timeout(listener.accept()).await.unwrap();
    server.write_all(b"220 hi").await.unwrap();
    let mut banner = [0; 6];
    within_timeout(guest.read_exact(&mut banner)).await.unwrap();
    assert_eq!(&banner, b"220 hi");
    drop(sandbox.egress);
    assert!(matches!(within_timeout(guest.read(&mut [0])).await, Ok(0) | Err(_)));
    assert!(matches!(within_timeout(server.read(&mut [0])).await, Ok(0) | Err(_)));
}

#[tokio::test]
async fn tls_must_name_the_dialled_name() {
    for (hello, reason, alert) in
        [(client_hello("evil.test"), "sni-mismatch", 112), (client_hello_without_name(), "no-sni", 49)]
    {
        let mut server = start_server(OK_RESPONSE).await;
        let mut sandbox = start(server.port, context(&["a.test:*+private"], &[&[LOOPBACK]]));
        // The server's response may come before the alert, because it does not wait for TLS.
        let received = sandbox.exchange(&hello).await;
        assert!(received.ends_with(&[0x15, 3, 3, 0, 2, 2, alert]), "{received:?}");
        assert_eq!(sandbox.next_reason().await, "allowed");
        let decision = sandbox.next_decision().await;
        assert_eq!((decision.is_allowed, decision.reason), (false, reason));
        assert_eq!(decision.host, Some("a.test".parse().unwrap()));
        assert_eq!(within_timeout(server.received.recv()).await.unwrap(), "");
    }
    let mut server = start_server("").await;
    let sandbox = start(server.port, context(&["a.test:*+private"], &[&[LOOPBACK]]));
    let mut guest = sandbox.connect().await;
    guest.write_all(&client_hello("A.test")).await.unwrap();
    guest.shutdown().await.unwrap();
    let received = within_timeout(server.received.recv()).await.unwrap();
    assert_eq!(received, String::from_utf8_lossy(&client_hello("A.test")));
}

#[tokio::test]
async fn every_request_must_name_the_dialled_name() {
    let mut server = start_server(OK_RESPONSE).await;
    let mut sandbox = start(server.port, context(&["a.test:*+private"], &[&[LOOPBACK], &[LOOPBACK]]));
    let response = sandbox.exchange_text(&get("evil.test")).await;
    assert!(response.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{response}");
    assert!(response.contains("X-Ringfence-Reason: host-mismatch\r\n"), "{response}");
    assert_eq!(sandbox.next_reason().await, "allowed");
    assert_eq!(sandbox.next_reason().await, "host-mismatch");
    assert_eq!(within_timeout(server.received.recv()).await.unwrap(), "");

    let allowed = get(&format!("a.test:{}", server.port));
    let response = sandbox.exchange_text(&format!("{allowed}{}", get("evil.test"))).await;
    assert!(!response.contains("400"), "{response}");
    assert_eq!(within_timeout(server.received.recv()).await.unwrap(), allowed);
    assert_eq!(sandbox.next_reason().await, "allowed");
    assert_eq!(sandbox.next_reason().await, "host-mismatch");
}

#[tokio::test]
async fn name_is_resolved_once_per_connection() {
    let mut server = start_server(OK_RESPONSE).await;
    let metadata = "169.254.169.254".parse().unwrap();
    let lookups: [&[IpAddr]; 3] = [&[LOOPBACK], &[metadata], &[LOOPBACK, metadata]];
    let mut sandbox = start(server.port, context(&["a.test:*+private"], &lookups));
    let request = get(&format!("a.test:{}", server.port));
    let mut guest = sandbox.connect().await;
    guest.write_all(request.as_bytes()).await.unwrap();
    guest.shutdown().await.unwrap();
    assert!(within_timeout(server.received.recv()).await.is_some());
    assert_eq!(sandbox.next_reason().await, "allowed");
    for _ in 0..2 {
        let response = sandbox.exchange_text(&request).await;
        assert!(response.contains("X-Ringfence-Reason: metadata-address\r\n"), "{response}");
        assert_eq!(sandbox.next_reason().await, "metadata-address");
    }
    assert!(server.received.try_recv().is_err());
}

#[tokio::test]
async fn server_may_have_an_ipv6_address() {
    let listener = TcpListener::bind("[::1]:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut sandbox = start(port, context(&["a.test:*+private"], &[&["::1".parse().unwrap()]]));
    let _guest = sandbox.connect().await;
    within_timeout(listener.accept()).await.unwrap();
    assert_eq!(sandbox.next_decision().await.address, Some("::1".parse().unwrap()));
}

#[tokio::test]
async fn connections_over_the_limit_of_all_listeners_are_closed() {
    let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (mut context, decisions) = context(&["a.test:*+private"], &[&[LOOPBACK]]);
    context.limits.max_connections = 1;
    let mut sandbox = start(port, (context, decisions));
    let _first = sandbox.connect().await;
    assert_eq!(sandbox.next_reason().await, "allowed");
    let mut second = sandbox.connect().await;
    assert!(matches!(within_timeout(second.read(&mut [0])).await, Ok(0) | Err(_)));
    let decision = sandbox.next_decision().await;
    assert_eq!((decision.reason, decision.source), ("too-many-connections", Source::Transparent));
}

#[tokio::test]
async fn added_rule_and_listener_apply_to_new_connections() {
    let mut server = start_server(OK_RESPONSE).await;
    let mut sandbox = start(server.port, context(&[], &[&[LOOPBACK]]));
    let request = get(&format!("a.test:{}", server.port));
    let response = sandbox.exchange_text(&request).await;
    let hint = format!("hint: allow it with ringfence allow session s1 a.test:{}\n", server.port);
    assert!(response.starts_with("HTTP/1.1 403 ") && response.contains(&hint), "{response}");
    let decision = sandbox.next_decision().await;
    let line = format!(
        "network: blocked a.test:{0}, not on the allow list; to permit it: ringfence allow session s1 a.test:{0}",
        server.port
    );
    assert_eq!(decision.describe(&Remedy::Session("s1".to_owned())), line);
    sandbox.egress.allow(format!("a.test:{}+private", server.port).parse().unwrap());
    let listener = std::net::TcpListener::bind((FIRST, 0)).unwrap();
    let second_port = listener.local_addr().unwrap().port();
    sandbox.egress.add_listener(listener).unwrap();
    assert_eq!(sandbox.egress.ports(), [server.port, second_port]);
    let mut guest = sandbox.connect().await;
    guest.write_all(request.as_bytes()).await.unwrap();
    guest.shutdown().await.unwrap();
    assert!(within_timeout(server.received.recv()).await.is_some());
    assert_eq!(sandbox.next_reason().await, "allowed");
    let _other = TcpStream::connect((FIRST, second_port)).await.unwrap();
    let decision = sandbox.next_decision().await;
    assert_eq!((decision.port, decision.reason), (Some(second_port), "wrong-port"));
}

/// Dials an address; returns what the guest receives, and the first decision.
async fn dial(
    context: &Context,
    decisions: &mut mpsc::Receiver<Decision>,
    dialled: &str,
    bytes: &[u8],
) -> (Vec<u8>, Decision) {
    let (mut guest, stream) = duplex(64 * 1024);
    let (from_client, to_client) = split(stream);
    guest.write_all(bytes).await.unwrap();
    let mut received = Vec::new();
    let read = async {
        guest.read_to_end(&mut received).await.unwrap();
        drop(guest);
    };
    tokio::join!(serve_connection(context, dialled.parse().unwrap(), from_client, to_client), read);
    (received, decisions.recv().await.unwrap())
}

#[tokio::test]
async fn refusals_have_the_form_of_the_protocol() {
    let (context, mut decisions) = context(&["a.test:8443"], &[]);
    for (dialled, reason) in [
        ("127.18.0.1:80", "wrong-port"),
        ("127.18.0.1:2525", "wrong-port"),
        ("127.18.0.2:80", "unknown-address"),
        ("127.0.0.1:80", "unknown-address"),
        ("[::1]:80", "unknown-address"),
        ("[::ffff:127.18.0.1]:80", "wrong-port"),
        ("127.18.0.1:8443", "resolve-failed"),
    ] {
        let (response, decision) = dial(&context, &mut decisions, dialled, get("a.test").as_bytes()).await;
        let response = String::from_utf8(response).unwrap();
        assert!(response.contains(&format!("X-Ringfence-Reason: {reason}\r\n")), "{dialled} {response}");
        assert_eq!((decision.reason, decision.source, decision.is_allowed), (reason, Source::Transparent, false));
        assert!(decision.host.is_some() && decision.port.is_some());
        let (response, decision) = dial(&context, &mut decisions, dialled, &client_hello("a.test")).await;
        let alert = match reason {
            "unknown-address" => 112,
            "resolve-failed" => 80,
            _ => 49,
        };
        assert_eq!((response, decision.reason), (vec![0x15, 3, 3, 0, 2, 2, alert], reason), "{dialled}");
    }
    let (response, decision) = dial(&context, &mut decisions, "127.18.0.1:2525", b"EHLO me\r\n").await;
    assert_eq!((response, decision.reason), (Vec::new(), "wrong-port"));
}

#[tokio::test(start_paused = true)]
async fn silent_guest_is_disconnected_after_a_refusal() {
    let (context, mut decisions) = context(&[], &[]);
    let (response, decision) = dial(&context, &mut decisions, "127.18.0.1:80", b"").await;
    assert_eq!((response, decision.reason), (Vec::new(), "no-rule"));
}

fn with_approvals(
    lookup_results: &[&[IpAddr]],
) -> (Context, mpsc::Receiver<Decision>, mpsc::Receiver<ApprovalRequest>) {
    let (mut context, decisions) = context(&[], lookup_results);
    let (approvals, requests) = Approvals::bounded(8);
    context.approvals = Some(ApprovalGate::new(approvals));
    (context, decisions, requests)
}

#[tokio::test(start_paused = true)]
async fn connection_without_rule_waits_for_approval() {
    let metadata = "169.254.169.254".parse().unwrap();
    let (context, mut decisions, mut requests) = with_approvals(&[&[LOOPBACK], &[metadata]]);
    let context = Arc::new(context);
    let request = get("a.test");
    let approve = async |requests: &mut mpsc::Receiver<ApprovalRequest>, approval| {
        let request = requests.recv().await.unwrap();
        assert_eq!((request.host.to_string().as_str(), request.port), ("a.test", Some(80)));
        request.reply.send(approval).unwrap();
    };
    // An approval allows no private addresses, because the question does not mention them.
    for (approval, reason) in [(Approval::Once, "private-address"), (Approval::Always, "metadata-address")] {
        let dial = dial(&context, &mut decisions, "127.18.0.1:80", request.as_bytes());
        let ((response, decision), ()) = tokio::join!(dial, approve(&mut requests, approval));
        assert_eq!(decision.reason, reason);
        assert_eq!(decision.rule, Some("a.test".parse().unwrap()));
        assert!(String::from_utf8(response).unwrap().contains(reason));
    }
    assert_eq!(context.policy.snapshot().rules.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn connection_without_approval_is_refused() {
    let (context, mut decisions, mut requests) = with_approvals(&[]);
    let dialled = "127.18.0.1:80";
    let refuse = async {
        requests.recv().await.unwrap().reply.send(Approval::No).unwrap();
    };
    let request = get("a.test");
    let ((response, decision), ()) = tokio::join!(dial(&context, &mut decisions, dialled, request.as_bytes()), refuse);
    let response = String::from_utf8(response).unwrap();
    assert!(response.contains("hint: allow it with ringfence allow session s1 a.test\n"), "{response}");
    assert_eq!(decision.reason, "not-approved");
    let (_, decision) = dial(&context, &mut decisions, dialled, request.as_bytes()).await;
    assert_eq!(decision.reason, "not-approved");
    assert!(requests.try_recv().is_err());
}
