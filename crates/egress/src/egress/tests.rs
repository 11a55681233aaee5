//! Tests of the whole egress over loopback sockets.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use super::*;
use crate::proxy::within_timeout;
use crate::resolver::encoding::{Response, parse_response, query};

struct Guest {
    egress: Egress,
    resolver: SocketAddr,
    resolver_tcp: SocketAddr,
    mirror: SocketAddr,
}

fn start(rules: &[&str]) -> Guest {
    let policy = Policy::parse(rules.iter().copied()).unwrap();
    let sockets = loopback_sockets(Vec::new());
    Guest {
        resolver: sockets.resolver.local_addr().unwrap(),
        resolver_tcp: sockets.resolver_tcp.local_addr().unwrap(),
        mirror: sockets.mirror.local_addr().unwrap(),
        egress: Egress::start(sockets, EgressSettings::new(policy, DecisionLog::bounded(8).0)).unwrap(),
    }
}

impl Guest {
    async fn ask(&self, name: &str) -> Response {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let query = query(7, name, 1);
        socket.send_to(&query, self.resolver).await.unwrap();
        let mut buffer = [0; 512];
        let length = within_timeout(socket.recv(&mut buffer)).await.unwrap();
        parse_response(&query, &buffer[..length])
    }

    async fn ask_over_tcp(&self, stream: &mut TcpStream, name: &str) -> Response {
        let query = query(7, name, 1);
        let length = u16::try_from(query.len()).unwrap();
        stream.write_all(&[&length.to_be_bytes(), query.as_slice()].concat()).await.unwrap();
        let mut response = vec![0; within_timeout(stream.read_u16()).await.unwrap().into()];
        stream.read_exact(&mut response).await.unwrap();
        parse_response(&query, &response)
    }
}

#[tokio::test]
async fn lookups_use_the_live_policy() {
    let guest = start(&["a.test"]);
    let address = guest.ask("a.test").await.address.unwrap();
    assert_eq!(address.octets()[..2], [198, 18]);
    assert_eq!(guest.ask("b.test").await.code, 3);
    guest.egress.allow("b.test".parse().unwrap());
    let mut stream = TcpStream::connect(guest.resolver_tcp).await.unwrap();
    let other = guest.ask_over_tcp(&mut stream, "b.test").await.address.unwrap();
    assert_ne!(other, address);
    assert_eq!(guest.ask_over_tcp(&mut stream, "a.test").await.address, Some(address));
}

#[tokio::test]
async fn resolver_connections_are_bounded() {
    let guest = start(&["a.test"]);
    let limit = guest.egress.0.context.limits.max_resolver_connections;
    let mut open = Vec::new();
    for _ in 0..limit {
        let mut stream = TcpStream::connect(guest.resolver_tcp).await.unwrap();
        guest.ask_over_tcp(&mut stream, "a.test").await;
        open.push(stream);
    }
    let mut over = TcpStream::connect(guest.resolver_tcp).await.unwrap();
    assert!(matches!(within_timeout(over.read(&mut [0])).await, Ok(0) | Err(_)));
    assert!(guest.ask("a.test").await.address.is_some(), "datagrams are served");
}

#[tokio::test]
async fn dropped_egress_answers_no_query() {
    let guest = start(&["a.test"]);
    let mut stream = TcpStream::connect(guest.resolver_tcp).await.unwrap();
    guest.ask_over_tcp(&mut stream, "a.test").await;
    drop(guest.egress);
    assert!(matches!(within_timeout(stream.read(&mut [0])).await, Ok(0) | Err(_)));
    // The socket is closed as soon as the task has ended.
    within_timeout(async {
        while UdpSocket::bind(guest.resolver).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn connections_to_the_mirror_are_closed_without_one() {
    let guest = start(&[]);
    let mut stream = TcpStream::connect(guest.mirror).await.unwrap();
    assert!(matches!(within_timeout(stream.read(&mut [0])).await, Ok(0) | Err(_)));
}

#[tokio::test]
async fn listeners_are_bounded() {
    let guest = start(&[]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for n in 0..=MAX_LISTENERS {
        let added = guest.egress.add_listener(listener.try_clone().unwrap());
        assert_eq!(added.is_ok(), n < MAX_LISTENERS);
    }
}
