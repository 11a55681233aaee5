//! Tests with a real connection that a supervisor has too.

use std::convert::Infallible;
use std::net::{Ipv4Addr, TcpListener as StdListener, TcpStream as StdStream};
use std::os::fd::AsFd as _;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::routing::{get, post};
use futures_util::stream;
use ringfence_sandbox::tcp_progress;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::*;
use crate::fair_pool::Principals;
use crate::handover::{Channel, CrashAction, CrashReplies, HandedConnections, WorkerSetup, pair};
use crate::http::app::Routes;
use crate::http::authenticator::tests::OwnerOnly;
use crate::http::connection_table::ConnectionTable;
use crate::http::connections;
use crate::http::incoming::Incoming;

/// A server with one client, and the supervisor's end of the connection.
struct Supervised {
    client: TcpStream,
    stream: StdStream,
    replies: CrashReplies,
    /// The number of steps that handlers may take.
    steps: watch::Sender<usize>,
    _channel: Channel,
    _end: DropGuard,
}

impl Supervised {
    async fn new() -> Self {
        let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).await.unwrap();
        let (stream, _) = listener.accept().unwrap();
        let (ours, theirs) = pair().unwrap();
        let replies = CrashReplies::new().unwrap();
        WorkerSetup::send(&ours, &replies, address).unwrap();
        let handed = HandedConnections::new(WorkerSetup::receive(theirs).unwrap()).unwrap();
        let channel = Channel::new(ours).unwrap();
        channel.send_connection(0, stream.as_fd()).await.unwrap();
        let (steps, allowed) = watch::channel(0);
        let end = CancellationToken::new();
        let shutdown = end.clone();
        tokio::spawn(async move {
            let (routes, table) = (Arc::new(Routes::new(routes(allowed))), ConnectionTable::new(8, Principals::One));
            connections::serve(Incoming::Handed(Box::new(handed)), &routes, &table, &OwnerOnly, &shutdown).await;
        });
        Self { client, stream, replies, steps, _channel: channel, _end: end.drop_guard() }
    }

    async fn send(&mut self, text: &str) {
        self.client.write_all(text.as_bytes()).await.unwrap();
    }

    /// The supervisor's action if the worker died now.
    fn action(&self) -> CrashAction {
        self.replies.read(0, tcp_progress(&self.stream).unwrap())
    }

    /// Waits until the reply that the supervisor would send fulfils a condition.
    async fn reply(&self, is_expected: impl Fn(&str) -> bool) -> String {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        loop {
            let action = self.action();
            if let CrashAction::Close { reply } = &action
                && let Ok(reply) = std::str::from_utf8(reply)
                && is_expected(reply)
            {
                return reply.to_owned();
            }
            assert!(tokio::time::Instant::now() < deadline, "{action:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn wait_until_resumable(&self) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        while self.action() != CrashAction::Resume {
            assert!(tokio::time::Instant::now() < deadline, "{:?}", self.action());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn read_until(&mut self, end: &str) -> String {
        let mut text = Vec::new();
        while !text.ends_with(end.as_bytes()) {
            text.push(self.client.read_u8().await.unwrap());
        }
        String::from_utf8(text).unwrap()
    }
}

fn routes(allowed: watch::Receiver<usize>) -> Router {
    let (for_call, for_plain, for_stream) = (allowed.clone(), allowed.clone(), allowed);
    let reach = |mut allowed: watch::Receiver<usize>, step: usize| async move {
        let _ = allowed.wait_for(|reached| *reached >= step).await;
    };
    let call = async move |request: Request| {
        request.extensions().get::<CrashReply>().unwrap().request_read(&Id::Number(7));
        reach(for_call, 1).await;
        "response"
    };
    let plain = async move || {
        reach(for_plain, 2).await;
        "plain"
    };
    let listen = async move |request: Request| {
        request.extensions().get::<CrashReply>().unwrap().request_read(&Id::Text("a".into()));
        let events = stream::unfold(0, move |step| {
            let allowed = for_stream.clone();
            async move {
                reach(allowed, step).await;
                (step < 3).then(|| (Ok::<_, Infallible>(Bytes::from(format!("data: {step}\n\n"))), step + 1))
            }
        });
        ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(events))
    };
    Router::new().route("/call", post(call)).route("/plain", get(plain)).route("/listen", get(listen))
}

const CALL: &str = "POST /call HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}";

fn is_reply_to_call(reply: &str) -> bool {
    reply.starts_with("HTTP/1.1 200 OK\r\n") && reply.contains("\"id\":7") && reply.contains("may have run")
}

#[tokio::test]
async fn request_has_a_reply_from_its_first_byte_to_its_response() {
    let mut supervised = Supervised::new().await;
    for step in 1..3 {
        supervised.wait_until_resumable().await;
        let (first, rest) = CALL.split_at(10);
        supervised.send(first).await;
        let reply = supervised.reply(|reply| !reply.is_empty()).await;
        assert!(reply.starts_with("HTTP/1.1 502 Bad Gateway\r\n") && reply.contains("may have run"), "{reply}");
        if step == 1 {
            supervised.send(rest).await;
            let reply = supervised.reply(is_reply_to_call).await;
            let (head, body) = reply.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{reply}");
            supervised.steps.send_replace(step);
        } else {
            supervised.send(rest).await;
        }
        supervised.read_until("response").await;
    }
    supervised.wait_until_resumable().await;
}

#[tokio::test]
async fn no_reply_is_sent_once_a_response_has_begun() {
    let mut supervised = Supervised::new().await;
    supervised.send(CALL).await;
    let reply = supervised.reply(is_reply_to_call).await;
    let progress = tcp_progress(&supervised.stream).unwrap();
    assert_eq!(supervised.replies.read(0, progress), CrashAction::Close { reply: reply.into_bytes() });
    // The counters if the worker had died after its first byte of the response.
    let later = TcpProgress { written: progress.written + 1, ..progress };
    assert_eq!(supervised.replies.read(0, later), CrashAction::Close { reply: Vec::new() });
}

#[tokio::test]
async fn reply_is_one_more_event_on_a_stream() {
    let mut supervised = Supervised::new().await;
    supervised.send("GET /listen HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    for step in 0..2 {
        supervised.steps.send_replace(step);
        let head = supervised.read_until(&format!("data: {step}\n\n\r\n")).await;
        assert!(step > 0 || head.contains("transfer-encoding: chunked"), "{head}");
        let reply = supervised.reply(|reply| reply.contains("event: message")).await;
        let (length, rest) = reply.split_once("\r\n").unwrap();
        let (event, end) = rest.split_at(usize::from_str_radix(length, 16).unwrap());
        assert!(event.contains("\"id\":\"a\"") && event.contains("may have run"), "{event}");
        assert_eq!(end, "\r\n0\r\n\r\n");
    }
    supervised.steps.send_replace(3);
    supervised.read_until("0\r\n\r\n").await;
    supervised.wait_until_resumable().await;
}

#[tokio::test]
async fn pipelined_request_has_a_reply() {
    let mut supervised = Supervised::new().await;
    supervised.send(&format!("{CALL}GET /plain HTTP/1.1\r\nHost: localhost\r\n\r\n")).await;
    supervised.reply(is_reply_to_call).await;
    supervised.steps.send_replace(1);
    supervised.read_until("response").await;
    let reply = supervised.reply(|reply| reply.starts_with("HTTP/1.1 502")).await;
    assert!(reply.contains("may have run"), "{reply}");
    supervised.steps.send_replace(2);
    supervised.read_until("plain").await;
    supervised.wait_until_resumable().await;
}

#[tokio::test]
async fn request_that_arrives_during_a_response_has_a_reply() {
    let mut supervised = Supervised::new().await;
    let (listen, next) = ("GET /listen HTTP/1.1\r\nHost: localhost\r\n\r\n", "GET /plain HT");
    supervised.send(listen).await;
    supervised.read_until("data: 0\n\n\r\n").await;
    supervised.send(next).await;
    while tcp_progress(&supervised.stream).unwrap().read < (listen.len() + next.len()) as u64 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    supervised.steps.send_replace(3);
    supervised.read_until("0\r\n\r\n").await;
    let reply = supervised.reply(|reply| reply.starts_with("HTTP/1.1 502")).await;
    assert!(reply.contains("may have run"), "{reply}");
}

#[test]
fn too_long_id_is_left_out_of_the_reply() {
    assert_eq!(reply(&Id::Text("x".repeat(MAX_REPLY_BYTES))), None);
    assert_eq!(last_event(Some(&Id::Text("x".repeat(MAX_REPLY_BYTES)))), b"0\r\n\r\n");
    assert!(UNKNOWN_REQUEST.len() <= MAX_REPLY_BYTES);
}
