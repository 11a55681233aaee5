use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::sync::mpsc;

use super::encoding::{Response, parse_response, query};
use super::*;
use crate::approvals::{ApprovalGate, ApprovalRequest, Approvals};
use crate::name_table::NameTable;
use crate::{DecisionLog, Policy};

const A: u16 = TYPE_A;
const AAAA: u16 = 28;
const FIRST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);

fn context(rules: &[&str]) -> (Context, mpsc::Receiver<Decision>) {
    let (log, decisions) = DecisionLog::bounded(1024);
    (Context::new(Policy::parse(rules.iter().copied()).unwrap(), log), decisions)
}

fn resolver(rules: &[&str]) -> (Resolver, mpsc::Receiver<Decision>) {
    let (context, decisions) = context(rules);
    (Resolver::new(Arc::new(context)), decisions)
}

fn ask(resolver: &Resolver, name: &str, kind: u16) -> Response {
    let query = query(7, name, kind);
    parse_response(&query, &resolver.respond(&query).unwrap())
}

/// The code and the address of a response.
fn ask_address(resolver: &Resolver, name: &str, kind: u16) -> (Code, Option<Ipv4Addr>) {
    let response = ask(resolver, name, kind);
    let codes = [Code::NoError, Code::ServerFailure, Code::NoSuchName, Code::Refused];
    (codes.into_iter().find(|code| *code as u16 == response.code).unwrap(), response.address)
}

#[tokio::test]
async fn allowed_names_have_an_ipv4_address_and_nothing_else() {
    let (resolver, mut decisions) = resolver(&["a.test", "*.b.test:8443", "db"]);
    assert_eq!(ask_address(&resolver, "A.Test", A), (Code::NoError, Some(FIRST)));
    assert_eq!(ask_address(&resolver, "a.test", TYPE_ANY), (Code::NoError, Some(FIRST)));
    for kind in [AAAA, TYPE_PTR, 15, 16, 65] {
        assert_eq!(ask_address(&resolver, "a.test", kind), (Code::NoError, None), "{kind}");
    }
    assert!(ask_address(&resolver, "x.y.b.test", A).1.is_some());
    assert!(ask_address(&resolver, "db", A).1.is_some());
    assert!(decisions.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn other_names_do_not_exist_and_are_recorded_once() {
    let (resolver, mut decisions) = resolver(&["a.test", "*.b.test"]);
    for name in ["evil.test", "x.a.test", "b.test", "xb.test", "a.test.evil.test", "test", "db"] {
        for kind in [A, AAAA, 16] {
            assert_eq!(ask_address(&resolver, name, kind), (Code::NoSuchName, None), "{name}");
        }
        let decision = decisions.try_recv().unwrap();
        assert_eq!(
            decision,
            Decision {
                source: Source::Resolver,
                host: Some(name.parse().unwrap()),
                reason: "no-rule",
                ..Decision::default()
            }
        );
        assert!(decisions.try_recv().is_err(), "{name}");
    }
    assert_eq!(ask_address(&resolver, "*.b.test", A), (Code::NoSuchName, None));
    let decision = decisions.try_recv().unwrap();
    assert_eq!((decision.host, decision.reason), (None, "bad-host"));
}

#[tokio::test]
async fn localhost_and_reverse_lookups_are_answered_locally() {
    let (resolver, mut decisions) = resolver(&["a.test", "localhost:80+private"]);
    let localhost = (Code::NoError, Some(Ipv4Addr::LOCALHOST));
    assert_eq!(ask_address(&resolver, "localhost", A), localhost);
    assert_eq!(ask_address(&resolver, "x.localhost", A), localhost);
    assert_eq!(ask_address(&resolver, "localhost", AAAA), (Code::NoError, None));
    assert_eq!(ask(&resolver, "1.0.18.198.in-addr.arpa", TYPE_PTR).code, 3);
    ask(&resolver, "a.test", A);
    let found = |name: &str| ask(&resolver, name, TYPE_PTR).other;
    assert_eq!(found("1.0.18.198.in-addr.arpa").as_deref(), Some(&b"\x01a\x04test\0"[..]));
    assert_eq!(found("1.0.0.127.in-addr.arpa").as_deref(), Some(&b"\x09localhost\0"[..]));
    assert_eq!(ask_address(&resolver, "1.0.18.198.in-addr.arpa", A), (Code::NoError, None));
    for name in ["2.0.18.198.in-addr.arpa", "8.8.8.8.in-addr.arpa", "18.198.in-addr.arpa", "8.e.f.ip6.arpa", "x.arpa"] {
        assert_eq!(ask(&resolver, name, TYPE_PTR).code, 3, "{name}");
    }
    assert!(decisions.try_recv().is_err());
}

#[tokio::test]
async fn unusual_queries_have_an_error_response() {
    let (resolver, _) = resolver(&["a.test"]);
    assert_eq!(ask_address(&resolver, "", 2), (Code::NoError, None));
    let mut chaos = query(7, "version.bind", 16);
    let last = chaos.len() - 1;
    chaos[last] = 3;
    assert_eq!(parse_response(&chaos, &resolver.respond(&chaos).unwrap()).code, Code::Refused as u16);
    let mut version = query(7, "a.test", A);
    version[11] = 1;
    version.extend_from_slice(&[0, 0, 41, 4, 0xd0, 0, 9, 0, 0, 0, 0]);
    assert_eq!(parse_response(&version, &resolver.respond(&version).unwrap()).code, 16);
    let malformed = &version[..version.len() - 1];
    let response = parse_response(malformed, &resolver.respond(malformed).unwrap());
    assert_eq!((response.code, response.has_question), (1, false));
    assert_eq!(resolver.respond(&[0; 11]), None);
}

#[tokio::test]
async fn added_rules_apply_to_the_next_query() {
    let (resolver, _) = resolver(&[]);
    assert_eq!(ask_address(&resolver, "a.test", A), (Code::NoSuchName, None));
    resolver.context.policy.allow("a.test".parse().unwrap());
    assert_eq!(ask_address(&resolver, "a.test", A), (Code::NoError, Some(FIRST)));
}

fn with_approvals(rules: &[&str]) -> (Resolver, mpsc::Receiver<ApprovalRequest>) {
    let (mut context, _) = context(rules);
    let (approvals, requests) = Approvals::bounded(8);
    context.approvals = Some(ApprovalGate::new(approvals));
    (Resolver::new(Arc::new(context)), requests)
}

#[tokio::test]
async fn with_approvals_public_names_have_an_address() {
    let (resolver, mut requests) = with_approvals(&[]);
    assert_eq!(ask_address(&resolver, "a.test", A), (Code::NoError, Some(FIRST)));
    for name in ["db", "a.test.localdomain", "printer.local"] {
        assert_eq!(ask_address(&resolver, name, A), (Code::NoSuchName, None), "{name}");
    }
    assert!(requests.try_recv().is_err(), "a lookup is no reason for a question");
}

#[tokio::test(start_paused = true)]
async fn flood_of_queries_uses_bounded_memory() {
    let (mut context, decisions) = context(&["*.a.test"]);
    context.names = NameTable::with_range(FIRST, 100);
    let resolver = Resolver::new(Arc::new(context));
    for n in 0..5000 {
        assert_eq!(ask_address(&resolver, &format!("n{n}.a.test"), A).0, Code::NoError);
        assert_eq!(ask_address(&resolver, &format!("n{n}.evil.test"), A).0, Code::NoSuchName);
    }
    assert_eq!(resolver.context.names.len(), 100);
    assert_eq!(decisions.len(), 64);
    assert_eq!(resolver.context.log.dropped(), 5000 - 64);
}

#[tokio::test]
async fn table_with_connections_only_is_a_server_failure() {
    let (mut context, _) = context(&["*.test"]);
    context.names = NameTable::with_range(FIRST, 1);
    let resolver = Resolver::new(Arc::new(context));
    let address = ask_address(&resolver, "a.test", A).1.unwrap();
    let _open = resolver.context.names.open(address.into()).unwrap();
    assert_eq!(ask_address(&resolver, "b.test", A), (Code::ServerFailure, None));
}

#[tokio::test]
async fn datagrams_are_answered_up_to_the_limit_of_one_turn() {
    let (resolver, _) = resolver(&["a.test"]);
    let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let guest = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    guest.connect(server.local_addr().unwrap()).await.unwrap();
    let valid = query(7, "a.test", A);
    guest.send(&[0; 5]).await.unwrap();
    guest.send(&vec![0; 2000]).await.unwrap();
    guest.send(&valid).await.unwrap();
    let mut buffer = [0; 600];
    let serve = async {
        loop {
            server.readable().await.unwrap();
            resolver.serve_datagrams(&server).unwrap();
        }
    };
    let mut codes = Vec::new();
    tokio::select! {
        () = serve => {}
        () = async {
            for _ in 0..2 {
                let length = guest.recv(&mut buffer).await.unwrap();
                assert!(length >= 12);
                codes.push(buffer[3] & 0xf);
            }
        } => {}
    }
    assert_eq!(codes, [1, 0], "the message without a header has no response");
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&u16::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}

#[tokio::test]
async fn pipelined_queries_over_tcp_are_answered_in_order() {
    let (resolver, _) = resolver(&["a.test"]);
    let (mut guest, stream) = duplex(4096);
    let queries = [query(1, "a.test", A), query(2, "evil.test", A), query(3, "a.test", AAAA)];
    for query in &queries {
        guest.write_all(&framed(query)).await.unwrap();
    }
    // A message that must be ignored ends the connection.
    guest.write_all(&framed(&[0; 5])).await.unwrap();
    serve_connection(&resolver, stream).await;
    let mut codes = Vec::new();
    for query in &queries {
        let mut response = vec![0; guest.read_u16().await.unwrap().into()];
        guest.read_exact(&mut response).await.unwrap();
        codes.push(parse_response(query, &response).code);
    }
    assert_eq!(codes, [0, 3, 0]);
    assert_eq!(guest.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn half_sent_query_over_tcp_times_out() {
    let (resolver, _) = resolver(&["a.test"]);
    for part in [&[][..], &[0], &framed(&query(1, "a.test", A))[..10]] {
        let (mut guest, stream) = duplex(4096);
        guest.write_all(part).await.unwrap();
        let started = tokio::time::Instant::now();
        let send_slowly = async {
            loop {
                tokio::time::sleep(Duration::from_secs(4)).await;
                if guest.write_all(&[3]).await.is_err() {
                    break;
                }
            }
        };
        tokio::select! {
            () = serve_connection(&resolver, stream) => {}
            () = send_slowly => {}
        }
        assert_eq!(started.elapsed(), resolver.context.limits.query_timeout);
    }
}

#[tokio::test(start_paused = true)]
async fn guest_that_does_not_read_responses_is_disconnected() {
    let (resolver, _) = resolver(&["a.test"]);
    let (mut guest, stream) = duplex(64);
    let flood = async {
        while guest.write_all(&framed(&query(1, "a.test", A))).await.is_ok() {}
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = serve_connection(&resolver, stream) => {}
        () = flood => {}
    }
}

#[tokio::test(start_paused = true)]
async fn oversized_query_over_tcp_ends_the_connection() {
    let (resolver, _) = resolver(&["a.test"]);
    let (mut guest, stream) = duplex(4096);
    guest.write_all(&[0xff, 0xff]).await.unwrap();
    let started = tokio::time::Instant::now();
    serve_connection(&resolver, stream).await;
    assert!(started.elapsed().is_zero());
}
