//! What a client is told if this process dies before it has answered: kept up to date with every step of its request,
//! and left with the supervisor, which has the connection too.
//!
//! Before anything was asked, and after everything was answered, the next process takes the connection over. From the
//! first byte of a request it is to be told that its call may have run. Once an answer has begun nothing more can be said,
//! but in an event stream: between two events there is room for one more.

use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Response, StatusCode, Version, header};
use http_body::{Frame, SizeHint};
use ringfence_runtime::handover::{LONGEST_WORDS, Place};
use ringfence_runtime::session::{Failure, Kind};
use serde_json::Value;

use super::replay::event;
use crate::failure;
use crate::rpc::{self, Id};

/// Those of one connection.
#[derive(Clone)]
pub(super) struct LastWords(Arc<Words>);

struct Words {
    place: Place,
    standing: Mutex<Standing>,
}

/// How far the request on a connection has come.
#[derive(Default)]
struct Standing {
    phase: Phase,
    id: Option<Id>,
    /// The answer is an event stream, with marks between its pieces.
    is_stream: bool,
    /// All of the answer was given to be written.
    has_ended: bool,
    /// More was read after the answer had begun: perhaps of a next request.
    is_ahead: bool,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    /// Something of a request was read.
    Asked,
    /// Something of the answer was written, up to anywhere in it.
    Answering,
    /// Up to the end of an event.
    BetweenEvents,
    /// It speaks something else now.
    Upgraded,
}

impl LastWords {
    pub(super) fn new(place: Place) -> Self {
        Self(Arc::new(Words { place, standing: Mutex::default() }))
    }

    fn change(&self, change: impl FnOnce(&Place, &mut Standing)) {
        change(&self.0.place, &mut self.0.standing.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Bytes of the client's were read.
    pub(super) fn heard(&self) {
        self.change(|place, standing| match standing.phase {
            Phase::Idle => {
                *standing = Standing { phase: Phase::Asked, ..Standing::default() };
                place.ends_with(&UNKNOWN);
            }
            Phase::Asked | Phase::Upgraded => {}
            Phase::Answering | Phase::BetweenEvents => standing.is_ahead = true,
        });
    }

    /// The request has an id, by which the client knows its answer.
    pub(super) fn asked(&self, id: &Id) {
        self.change(|place, standing| {
            if standing.phase == Phase::Asked {
                place.ends_with(&answer(id).unwrap_or_else(|| UNKNOWN.clone()));
                standing.id = Some(id.clone());
            }
        });
    }

    /// An answer is about to be given: follows it to its end.
    pub(super) fn follow(&self, version: Version, response: Response<Body>) -> Response<Body> {
        let content_type = response.headers().get(header::CONTENT_TYPE).map_or(&b""[..], |found| found.as_bytes());
        // Only there the end of each piece is marked.
        let is_stream = content_type.starts_with(b"text/event-stream") && version == Version::HTTP_11;
        self.change(|place, standing| {
            standing.is_stream = is_stream;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                standing.phase = Phase::Upgraded;
                place.ends_with(b"");
            }
        });
        response.map(|body| Body::new(Followed { body, _end: End(self.clone()) }))
    }

    /// Bytes of an answer are about to be written.
    pub(super) fn writes(&self) {
        self.change(|place, standing| match standing.phase {
            Phase::Asked | Phase::BetweenEvents => {
                standing.phase = Phase::Answering;
                place.ends_with(b"");
            }
            // What is said before anything was asked is said of what nobody can answer.
            Phase::Idle | Phase::Answering | Phase::Upgraded => {}
        });
    }

    /// All that was to be written so far has been.
    pub(super) fn flushed(&self) {
        self.change(|place, standing| {
            if standing.phase != Phase::Answering {
                return;
            }
            if standing.has_ended && standing.is_ahead {
                *standing = Standing { phase: Phase::Asked, ..Standing::default() };
                place.ends_with(&UNKNOWN);
            } else if standing.has_ended {
                *standing = Standing::default();
                place.goes_on();
            } else if standing.is_stream {
                standing.phase = Phase::BetweenEvents;
                place.ends_with(&last_event(standing.id.as_ref()));
            }
        });
    }
}

/// Dropped with the body of an answer: hyper lets go of it once it has taken the last of it.
struct End(LastWords);

impl Drop for End {
    fn drop(&mut self) {
        self.0.change(|_, standing| standing.has_ended = true);
    }
}

struct Followed {
    body: Body,
    _end: End,
}

impl HttpBody for Followed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn lost() -> Failure {
    Failure::new(Kind::Connection, "the server was lost while this was under way: it may have run, or may not")
        .suggest("look at what it has done before asking again; its session goes on, with its variables")
}

fn error(id: Option<&Id>) -> Value {
    rpc::answer(id, &Err(failure::render(lost())))
}

fn http(status: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
        .into_bytes()
}

/// Where the request is not known, or has no id.
static UNKNOWN: LazyLock<Vec<u8>> = LazyLock::new(|| http("502 Bad Gateway", &failure::render_http(lost()).1));

/// The answer to a request, if its id is not too long for that.
fn answer(id: &Id) -> Option<Vec<u8>> {
    let words = http("200 OK", &error(Some(id)));
    (words.len() <= LONGEST_WORDS).then_some(words)
}

/// The last piece of an event stream, with the answer to a request as its last event.
fn last_event(id: Option<&Id>) -> Vec<u8> {
    let end = b"0\r\n\r\n".to_vec();
    let Some(id) = id else { return end };
    let event = event(&error(Some(id)));
    let mut words = format!("{:x}\r\n", event.len()).into_bytes();
    words.extend(&event[..]);
    words.extend(b"\r\n0\r\n\r\n");
    if words.len() <= LONGEST_WORDS { words } else { end }
}
