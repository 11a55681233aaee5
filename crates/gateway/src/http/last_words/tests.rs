//! With a real connection, held as a supervisor holds it.

use std::convert::Infallible;
use std::net::{Ipv4Addr, TcpListener as StdListener, TcpStream as StdStream};
use std::os::fd::AsFd as _;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::routing::{get, post};
use futures_util::stream;
use ringfence_mcp::handover::{Channel, Fate, Handed, Hello, Wills, pair};
use ringfence_sandbox::tcp_progress;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::*;
use crate::http::access::Access;
use crate::http::app::App;
use crate::http::connection_table::ConnectionTable;
use crate::http::incoming::Incoming;
use crate::http::{HttpOptions, connections};
use crate::share::Principals;

/// A server with one client, and what its supervisor has.
struct Held {
    client: TcpStream,
    stream: StdStream,
    wills: Wills,
    /// How many steps of their answers handlers may go.
    steps: watch::Sender<usize>,
    _channel: Channel,
    _end: DropGuard,
}

impl Held {
    async fn new() -> Self {
        let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).await.unwrap();
        let (stream, _) = listener.accept().unwrap();
        let (ours, theirs) = pair().unwrap();
        let wills = Wills::new().unwrap();
        Hello::say(&ours, &wills, address).unwrap();
        let handed = Handed::new(Hello::hear(theirs).unwrap()).unwrap();
        let channel = Channel::new(ours).unwrap();
        channel.give(0, stream.as_fd()).await.unwrap();
        let (steps, allowed) = watch::channel(0);
        let end = CancellationToken::new();
        let ended = end.clone();
        tokio::spawn(async move {
            let app = Arc::new(App::new(app(allowed), None));
            let (table, access) = (ConnectionTable::new(8, Principals::One), Access::new(&HttpOptions::default()));
            connections::serve(Incoming::Handed(Box::new(handed)), &app, &table, &access, &ended).await;
        });
        Self { client, stream, wills, steps, _channel: channel, _end: end.drop_guard() }
    }

    async fn send(&mut self, text: &str) {
        self.client.write_all(text.as_bytes()).await.unwrap();
    }

    /// What would become of the connection now.
    fn fate(&self) -> Fate {
        self.wills.read(0, tcp_progress(&self.stream).unwrap())
    }

    /// The words that would be said now, once there are such.
    async fn words(&self, holds: impl Fn(&str) -> bool) -> String {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        loop {
            let fate = self.fate();
            if let Fate::Ends { words } = &fate
                && let Ok(words) = std::str::from_utf8(words)
                && holds(words)
            {
                return words.to_owned();
            }
            assert!(tokio::time::Instant::now() < deadline, "{fate:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn goes_on(&self) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        while self.fate() != Fate::GoesOn {
            assert!(tokio::time::Instant::now() < deadline, "{:?}", self.fate());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn read_until(&mut self, end: &str) -> String {
        let mut heard = Vec::new();
        while !heard.ends_with(end.as_bytes()) {
            heard.push(self.client.read_u8().await.unwrap());
        }
        String::from_utf8(heard).unwrap()
    }
}

fn app(allowed: watch::Receiver<usize>) -> Router {
    let (one, two, other) = (allowed.clone(), allowed.clone(), allowed);
    let reach = |mut allowed: watch::Receiver<usize>, step: usize| async move {
        let _ = allowed.wait_for(|reached| *reached >= step).await;
    };
    let ask = async move |request: Request| {
        request.extensions().get::<LastWords>().unwrap().asked(&Id::Number(7));
        reach(one, 1).await;
        "answer"
    };
    let say = async move || {
        reach(two, 2).await;
        "said"
    };
    let listen = async move |request: Request| {
        request.extensions().get::<LastWords>().unwrap().asked(&Id::Text("a".into()));
        let events = stream::unfold(0, move |step| {
            let allowed = other.clone();
            async move {
                reach(allowed, step).await;
                (step < 3).then(|| (Ok::<_, Infallible>(Bytes::from(format!("data: {step}\n\n"))), step + 1))
            }
        });
        ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(events))
    };
    Router::new().route("/ask", post(ask)).route("/say", get(say)).route("/listen", get(listen))
}

const ASK: &str = "POST /ask HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}";

fn is_answer(words: &str) -> bool {
    words.starts_with("HTTP/1.1 200 OK\r\n") && words.contains("\"id\":7") && words.contains("may have run")
}

#[tokio::test]
async fn a_request_is_answered_from_its_first_byte_to_its_last() {
    let mut held = Held::new().await;
    for step in 1..3 {
        held.goes_on().await;
        let (first, rest) = ASK.split_at(10);
        held.send(first).await;
        let words = held.words(|words| !words.is_empty()).await;
        assert!(words.starts_with("HTTP/1.1 502 Bad Gateway\r\n") && words.contains("may have run"), "{words}");
        if step == 1 {
            held.send(rest).await;
            let words = held.words(is_answer).await;
            let (head, body) = words.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{words}");
            held.steps.send_replace(step);
        } else {
            held.send(rest).await;
        }
        held.read_until("answer").await;
    }
    held.goes_on().await;
}

#[tokio::test]
async fn nothing_is_said_once_an_answer_has_begun() {
    let mut held = Held::new().await;
    held.send(ASK).await;
    let words = held.words(is_answer).await;
    // What the supervisor finds if the worker has written something, and no more.
    let written = tcp_progress(&held.stream).unwrap();
    assert_eq!(held.wills.read(0, written), Fate::Ends { words: words.into_bytes() });
    let later = ringfence_sandbox::TcpProgress { written: written.written + 1, ..written };
    assert_eq!(held.wills.read(0, later), Fate::Ends { words: Vec::new() });
}

#[tokio::test]
async fn between_two_events_there_is_room_for_one_more() {
    let mut held = Held::new().await;
    held.send("GET /listen HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    for step in 0..2 {
        held.steps.send_replace(step);
        let head = held.read_until(&format!("data: {step}\n\n\r\n")).await;
        assert!(step > 0 || head.contains("transfer-encoding: chunked"), "{head}");
        let words = held.words(|words| words.contains("event: message")).await;
        let (length, rest) = words.split_once("\r\n").unwrap();
        let (event, end) = rest.split_at(usize::from_str_radix(length, 16).unwrap());
        assert!(event.contains("\"id\":\"a\"") && event.contains("may have run"), "{event}");
        assert_eq!(end, "\r\n0\r\n\r\n");
    }
    held.steps.send_replace(3);
    held.read_until("0\r\n\r\n").await;
    held.goes_on().await;
}

#[tokio::test]
async fn a_request_that_was_read_together_with_another_is_not_forgotten() {
    let mut held = Held::new().await;
    held.send(&format!("{ASK}GET /say HTTP/1.1\r\nHost: localhost\r\n\r\n")).await;
    held.words(is_answer).await;
    held.steps.send_replace(1);
    held.read_until("answer").await;
    let words = held.words(|words| words.starts_with("HTTP/1.1 502")).await;
    assert!(words.contains("may have run"), "{words}");
    held.steps.send_replace(2);
    held.read_until("said").await;
    held.goes_on().await;
}

#[tokio::test]
async fn a_request_that_was_read_during_the_answer_to_another_is_not_forgotten() {
    let mut held = Held::new().await;
    let (listen, say) = ("GET /listen HTTP/1.1\r\nHost: localhost\r\n\r\n", "GET /say HT");
    held.send(listen).await;
    held.read_until("data: 0\n\n\r\n").await;
    held.send(say).await;
    while tcp_progress(&held.stream).unwrap().read < (listen.len() + say.len()) as u64 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    held.steps.send_replace(3);
    held.read_until("0\r\n\r\n").await;
    let words = held.words(|words| words.starts_with("HTTP/1.1 502")).await;
    assert!(words.contains("may have run"), "{words}");
}

#[test]
fn an_id_that_is_too_long_is_answered_without_it() {
    assert_eq!(answer(&Id::Text("x".repeat(LONGEST_WORDS))), None);
    assert_eq!(last_event(Some(&Id::Text("x".repeat(LONGEST_WORDS)))), b"0\r\n\r\n");
    assert!(UNKNOWN.len() <= LONGEST_WORDS);
}
