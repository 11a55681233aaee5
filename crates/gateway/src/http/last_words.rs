//! What a client is told if this process dies before it has answered: left with the supervisor, which has the connection
//! too, at every step of a request.
//!
//! Before anything was asked, and after everything was answered, the next process takes the connection over. From the
//! first byte of a request its client is to be told that its call may have run. Once an answer has begun nothing more can
//! be said, but in an event stream: between two events there is room for one more.

use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Response, StatusCode, Version, header};
use http_body::{Frame, SizeHint};
use ringfence_core::{Failure, Kind};
use ringfence_mcp::handover::{LONGEST_WORDS, Place, Will};
use ringfence_sandbox::TcpProgress;
use serde_json::Value;

use super::replay::event;
use crate::failure;
use crate::rpc;
use crate::rpc::Id;

/// Those of one connection.
#[derive(Clone)]
pub(super) struct LastWords(Arc<Words>);

struct Words {
    place: Place,
    standing: Mutex<Standing>,
}

/// How far a connection has come, and the request on it.
#[derive(Default)]
struct Standing {
    read: u64,
    written: u64,
    /// What had been written when the request came.
    asked_at: u64,
    id: Option<Id>,
    /// Its answer, if its id is not too long for that.
    words: Option<Vec<u8>>,
    answer: Answer,
    /// Nothing was read since the last request was answered.
    is_resting: bool,
    /// More was read after the answer had begun: perhaps of a next request.
    is_ahead: bool,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Answer {
    #[default]
    None,
    /// It is there; what is written from now on is of it.
    Given { is_stream: bool },
    /// Some of it was written: of a stream, up to the end of an event as far as is known.
    Begun { is_stream: bool },
    /// All of it was given to be written.
    Ended,
    /// Something else is spoken now.
    Upgraded,
}

impl LastWords {
    /// None where the kernel does not tell how far a connection has come.
    pub(super) fn new(place: Place) -> Option<Self> {
        let progress = place.progress()?;
        let standing = Standing::new(progress.read, progress.written);
        place.leave(standing.rest());
        Some(Self(Arc::new(Words { place, standing: Mutex::new(standing) })))
    }

    fn change(&self, change: impl FnOnce(&Place, &mut Standing)) {
        change(&self.0.place, &mut self.0.standing.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Bytes of the client's were read.
    pub(super) fn heard(&self, bytes: usize) {
        self.change(|_, standing| {
            standing.read += bytes as u64;
            standing.is_resting = false;
            standing.is_ahead |= matches!(standing.answer, Answer::Begun { .. } | Answer::Ended);
        });
    }

    /// A request was read to the end of its head.
    pub(super) fn begins(&self) {
        self.change(|place, standing| {
            // It was read together with the one before.
            if std::mem::take(&mut standing.is_resting) {
                place.leave(standing.last(&UNKNOWN));
            }
        });
    }

    /// The request has an id, by which the client knows its answer.
    pub(super) fn asked(&self, id: &Id) {
        self.change(|place, standing| {
            (standing.id, standing.words) = (Some(id.clone()), answer(id));
            standing.asked_at = standing.written;
            place.leave(standing.last(standing.words()));
        });
    }

    /// An answer is about to be written: follows it to its end.
    pub(super) fn follow(&self, version: Version, response: Response<Body>) -> Response<Body> {
        let content_type = response.headers().get(header::CONTENT_TYPE).map_or(&b""[..], |found| found.as_bytes());
        // Only there the end of each piece is marked.
        let is_stream = content_type.starts_with(b"text/event-stream") && version == Version::HTTP_11;
        self.change(|place, standing| {
            standing.answer = Answer::Given { is_stream };
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                standing.answer = Answer::Upgraded;
                place.leave(standing.last(b""));
            }
        });
        response.map(|body| Body::new(Followed { body, _end: End(self.clone()) }))
    }

    /// So much is about to be written, perhaps less.
    pub(super) fn writes(&self, bytes: usize) {
        self.change(|place, standing| {
            let (read, written) = (standing.read, standing.written + bytes as u64);
            match standing.answer {
                // If all of it is written, nothing is left to say.
                Answer::Ended if !standing.is_ahead => place.leave(Will {
                    goes_on_at: Some(TcpProgress { read, written }),
                    words: standing.words(),
                    said_at: [standing.asked_at; 2],
                }),
                Answer::Begun { is_stream: true } => place.leave(Will {
                    goes_on_at: None,
                    words: &last_event(standing.id.as_ref()),
                    said_at: [standing.written, written],
                }),
                _ => {}
            }
        });
    }

    /// So much was.
    pub(super) fn wrote(&self, bytes: usize) {
        self.change(|_, standing| {
            standing.written += bytes as u64;
            if let Answer::Given { is_stream } = standing.answer {
                standing.answer = Answer::Begun { is_stream };
            }
        });
    }

    /// All that was to be written so far has been.
    pub(super) fn flushed(&self) {
        self.change(|place, standing| match standing.answer {
            Answer::Ended => {
                let is_ahead = standing.is_ahead;
                *standing = Standing::new(standing.read, standing.written);
                place.leave(if is_ahead { standing.last(&UNKNOWN) } else { standing.rest() });
            }
            Answer::Begun { is_stream: true } => place.leave(standing.last(&last_event(standing.id.as_ref()))),
            _ => {}
        });
    }
}

impl Standing {
    fn new(read: u64, written: u64) -> Self {
        Self { read, written, asked_at: written, is_resting: true, ..Self::default() }
    }

    /// The answer to the request, as far as it is known.
    fn words(&self) -> &[u8] {
        self.words.as_deref().unwrap_or(&UNKNOWN)
    }

    /// Nothing is asked that is not answered. Whatever is read from now on is a request.
    fn rest(&self) -> Will<'static> {
        let goes_on_at = Some(TcpProgress { read: self.read, written: self.written });
        Will { goes_on_at, words: &UNKNOWN, said_at: [self.written; 2] }
    }

    fn last<'a>(&self, words: &'a [u8]) -> Will<'a> {
        Will { goes_on_at: None, words, said_at: [self.written; 2] }
    }
}

/// Dropped with the body of an answer: hyper lets go of it once it has taken the last of it.
struct End(LastWords);

impl Drop for End {
    fn drop(&mut self) {
        self.0.change(|_, standing| {
            if standing.answer != Answer::Upgraded {
                standing.answer = Answer::Ended;
            }
        });
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
        .hint("look at what it has done before asking again; its session goes on, with its variables")
}

fn error(id: Option<&Id>) -> Value {
    rpc::answer(id, Err(failure::render(lost())))
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

#[cfg(test)]
mod tests;
