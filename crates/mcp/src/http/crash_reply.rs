//! Keeps the record of a connection up to date that tells the supervisor what to do if this process dies.
//!
//! Before a request and after its response, the next worker can continue the connection. From the first byte of a
//! request, the record contains a reply that says that the call may have run. Once a response has begun, nothing more can
//! be sent, except on an event stream: there, one more event fits between two others.

use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Response, StatusCode, Version, header};
use http_body::{Frame, SizeHint};
use ringfence_core::sync::Mutex;
use ringfence_core::{Failure, Kind};
use ringfence_sandbox::TcpProgress;
use serde_json::Value;

use crate::handover::{self, CrashReplySlot, MAX_REPLY_BYTES};
use crate::replay::event;
use crate::rpc::Id;
use crate::{failure, rpc};

/// The record of one connection.
#[derive(Clone)]
pub(super) struct CrashReply(Arc<Inner>);

struct Inner {
    slot: CrashReplySlot,
    state: Mutex<State>,
}

/// The progress of a connection, and the request on it.
#[derive(Default)]
struct State {
    read: u64,
    written: u64,
    /// Bytes written when the request was read.
    written_before_response: u64,
    id: Option<Id>,
    /// The reply to the request, unless its id is too long for the record.
    reply: Option<Vec<u8>>,
    response: ResponseState,
    /// Nothing was read since the last response.
    is_idle: bool,
    /// Bytes were read after the response had begun; they may belong to the next request.
    has_read_ahead: bool,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum ResponseState {
    #[default]
    None,
    /// The response is ready; the next bytes written belong to it.
    Ready { is_stream: bool },
    /// A part was written. On a stream, up to the end of an event as far as is known.
    Begun { is_stream: bool },
    /// hyper has taken all of it.
    Complete,
    /// The connection has switched to another protocol.
    Upgraded,
}

impl CrashReply {
    /// Returns None if the kernel does not provide the counters of a connection.
    pub(super) fn new(slot: CrashReplySlot) -> Option<Self> {
        let progress = slot.progress()?;
        let state = State::new(progress.read, progress.written);
        slot.set(state.resumable());
        Some(Self(Arc::new(Inner { slot, state: Mutex::new(state) })))
    }

    fn update(&self, update: impl FnOnce(&CrashReplySlot, &mut State)) {
        update(&self.0.slot, &mut self.0.state.lock());
    }

    /// Bytes of the client were read.
    pub(super) fn bytes_read(&self, bytes: usize) {
        self.update(|_, state| {
            state.read += bytes as u64;
            state.is_idle = false;
            state.has_read_ahead |= matches!(state.response, ResponseState::Begun { .. } | ResponseState::Complete);
        });
    }

    /// The head of a request was read.
    pub(super) fn head_read(&self) {
        self.update(|slot, state| {
            // The request was read together with the one before.
            if std::mem::take(&mut state.is_idle) {
                slot.set(state.final_reply(&UNKNOWN_REQUEST));
            }
        });
    }

    /// A request with an id was read.
    pub(super) fn request_read(&self, id: &Id) {
        self.update(|slot, state| {
            (state.id, state.reply) = (Some(id.clone()), reply(id));
            state.written_before_response = state.written;
            slot.set(state.final_reply(state.reply()));
        });
    }

    /// Tracks a response until it is written.
    pub(super) fn track(&self, version: Version, response: Response<Body>) -> Response<Body> {
        let content_type = response.headers().get(header::CONTENT_TYPE).map_or(&b""[..], |found| found.as_bytes());
        // Only HTTP/1.1 has chunks, which mark the end of each event.
        let is_stream = content_type.starts_with(b"text/event-stream") && version == Version::HTTP_11;
        self.update(|slot, state| {
            state.response = ResponseState::Ready { is_stream };
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                state.response = ResponseState::Upgraded;
                slot.set(state.final_reply(b""));
            }
        });
        response.map(|body| Body::new(TrackedBody { body, _complete: CompleteOnDrop(self.clone()) }))
    }

    /// At most this many bytes are about to be written.
    pub(super) fn before_write(&self, bytes: usize) {
        self.update(|slot, state| {
            let (read, written) = (state.read, state.written + bytes as u64);
            match state.response {
                // If all of them are written, the response is complete.
                ResponseState::Complete if !state.has_read_ahead => slot.set(handover::CrashReply {
                    resume_at: Some(TcpProgress { read, written }),
                    reply: state.reply(),
                    reply_at: [state.written_before_response; 2],
                }),
                ResponseState::Begun { is_stream: true } => slot.set(handover::CrashReply {
                    resume_at: None,
                    reply: &last_event(state.id.as_ref()),
                    reply_at: [state.written, written],
                }),
                _ => {}
            }
        });
    }

    /// This many bytes were written.
    pub(super) fn written(&self, bytes: usize) {
        self.update(|_, state| {
            state.written += bytes as u64;
            if let ResponseState::Ready { is_stream } = state.response {
                state.response = ResponseState::Begun { is_stream };
            }
        });
    }

    /// Everything so far was written.
    pub(super) fn flushed(&self) {
        self.update(|slot, state| match state.response {
            ResponseState::Complete => {
                let has_read_ahead = state.has_read_ahead;
                *state = State::new(state.read, state.written);
                slot.set(if has_read_ahead { state.final_reply(&UNKNOWN_REQUEST) } else { state.resumable() });
            }
            ResponseState::Begun { is_stream: true } => slot.set(state.final_reply(&last_event(state.id.as_ref()))),
            _ => {}
        });
    }
}

impl State {
    fn new(read: u64, written: u64) -> Self {
        Self { read, written, written_before_response: written, is_idle: true, ..Self::default() }
    }

    /// The reply to the request, without its id if that is too long.
    fn reply(&self) -> &[u8] {
        self.reply.as_deref().unwrap_or(&UNKNOWN_REQUEST)
    }

    /// The record while no request is unanswered. Bytes that are read later belong to a request.
    fn resumable(&self) -> handover::CrashReply<'static> {
        let resume_at = Some(TcpProgress { read: self.read, written: self.written });
        handover::CrashReply { resume_at, reply: &UNKNOWN_REQUEST, reply_at: [self.written; 2] }
    }

    fn final_reply<'a>(&self, reply: &'a [u8]) -> handover::CrashReply<'a> {
        handover::CrashReply { resume_at: None, reply, reply_at: [self.written; 2] }
    }
}

/// Dropped with the body of a response, which hyper drops after it has taken the last of it.
struct CompleteOnDrop(CrashReply);

impl Drop for CompleteOnDrop {
    fn drop(&mut self) {
        self.0.update(|_, state| {
            if state.response != ResponseState::Upgraded {
                state.response = ResponseState::Complete;
            }
        });
    }
}

struct TrackedBody {
    body: Body,
    _complete: CompleteOnDrop,
}

impl HttpBody for TrackedBody {
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

fn server_lost() -> Failure {
    Failure::new(Kind::Connection, "the server crashed during this request; the call may have run")
        .hint("check whether it had an effect before you call again; its session continues with its variables")
}

fn error(id: Option<&Id>) -> Value {
    rpc::response(id, Err(failure::render(server_lost())))
}

fn http_response(status: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
        .into_bytes()
}

/// The reply to a request that is not known, or that has no id.
static UNKNOWN_REQUEST: LazyLock<Vec<u8>> =
    LazyLock::new(|| http_response("502 Bad Gateway", &failure::render_http(server_lost()).1));

/// The reply to a request, or None if its id is too long for the record.
fn reply(id: &Id) -> Option<Vec<u8>> {
    let reply = http_response("200 OK", &error(Some(id)));
    (reply.len() <= MAX_REPLY_BYTES).then_some(reply)
}

/// The last chunks of an event stream, with the reply to a request as the last event.
fn last_event(id: Option<&Id>) -> Vec<u8> {
    let end = b"0\r\n\r\n".to_vec();
    let Some(id) = id else { return end };
    let event = event(&error(Some(id)));
    let mut chunks = format!("{:x}\r\n", event.len()).into_bytes();
    chunks.extend(&event[..]);
    chunks.extend(b"\r\n0\r\n\r\n");
    if chunks.len() <= MAX_REPLY_BYTES { chunks } else { end }
}

#[cfg(test)]
mod tests;
