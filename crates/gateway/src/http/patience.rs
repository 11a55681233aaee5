//! Keeps the connection of a long call alive, and gives it the messages that come before its answer.
//!
//! An answer that comes soon, with nothing before it, is plain JSON. Any other becomes an event stream with a sign
//! of life now and then, since proxies and clients give up on connections that are silent.
//! Dropping the response, at any time, drops the call, unless its client may come back for the rest (`replay`).

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::replay::event;
use crate::client::Client;
use crate::in_flight::Ticket;

/// Every refusal that has an HTTP status of its own is decided well before this.
const SOON: Duration = Duration::from_secs(10);
pub(super) const SIGN_OF_LIFE: Duration = Duration::from_secs(15);

/// Of an answer.
const USUAL_BYTES: usize = 1 << 10;
/// One that takes a while to be written.
const LARGE_BYTES: usize = 1 << 20;

/// The answer to a request, with the status that it has if nothing was sent before it.
pub(super) type Answer = Pin<Box<dyn Future<Output = (StatusCode, Value)> + Send>>;

/// How an answer is given.
#[derive(Clone, Default)]
pub(super) struct Manner {
    /// The client takes nothing but the answer.
    pub(super) only_json: bool,
    /// As an event stream also where nothing comes before it.
    pub(super) always_streams: bool,
    /// Where streams are kept for a client that may come back.
    pub(super) client: Option<Arc<Client>>,
}

/// Answers as soon as there is something to say, or with nothing once the ticket is cancelled. Without `messages` none
/// can come before the answer.
pub(super) async fn respond(
    mut answer: Answer,
    mut messages: Option<mpsc::Receiver<Value>>,
    ticket: Ticket,
    manner: Manner,
) -> Response {
    if manner.only_json {
        return tokio::select! {
            (status, answer) = &mut answer => plain(status, answer).await,
            () = ticket.token.cancelled() => StatusCode::ACCEPTED.into_response(),
        };
    }
    let wait = tokio::select! {
        biased;
        (status, answer) = &mut answer => {
            let first = messages.as_mut().and_then(|messages| messages.try_recv().ok());
            if first.is_none() && !(manner.always_streams && status == StatusCode::OK) {
                return plain(status, answer).await;
            }
            Wait { first, answer: None, last: Some(answer), messages, ticket }
        }
        Some(first) = next(&mut messages) => Wait { first: Some(first), ..Wait::new(answer, messages, ticket) },
        () = tokio::time::sleep(SOON) => Wait::new(answer, messages, ticket),
        () = ticket.token.cancelled() => return StatusCode::ACCEPTED.into_response(),
    };
    let recorded = match manner.client {
        Some(client) => client.replays().record(Box::new(wait)),
        None => Err(Box::new(wait)),
    };
    match recorded {
        Ok(events) => stream_of(events),
        Err(wait) => stream_of(wait.events()),
    }
}

async fn plain(status: StatusCode, answer: Value) -> Response {
    let mut room = LARGE_BYTES;
    let written = if is_larger(&answer, &mut room) {
        // Others are served meanwhile.
        spawn_blocking(move || write(&answer)).await.ok().flatten()
    } else {
        write(&answer)
    };
    let json = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    written
        .map_or_else(|| StatusCode::INTERNAL_SERVER_ERROR.into_response(), |text| (status, json, text).into_response())
}

fn write(answer: &Value) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(USUAL_BYTES);
    serde_json::to_writer(&mut text, answer).ok().map(|()| text)
}

/// Whether its texts have more bytes than there is room for, which becomes less by them.
pub(super) fn is_larger(answer: &Value, room: &mut usize) -> bool {
    match answer {
        Value::String(text) => {
            let left = room.checked_sub(text.len());
            *room = left.unwrap_or(0);
            left.is_none()
        }
        Value::Array(items) => items.iter().any(|item| is_larger(item, room)),
        Value::Object(fields) => fields.values().any(|field| is_larger(field, room)),
        _ => false,
    }
}

/// An event stream of messages as they come, until whoever sends them is gone.
pub(super) fn endless(messages: mpsc::Receiver<Value>, ticket: Ticket) -> Response {
    let messages = Some(messages);
    stream_of(Box::new(Wait { first: None, answer: None, last: None, messages, ticket }).events())
}

/// The rest of a stream whose connection broke.
pub(super) fn resume(client: &Client, last_event: &str) -> Option<Response> {
    client.replays().resume(last_event).map(stream_of)
}

/// What a stream still waits for.
pub(super) struct Wait {
    first: Option<Value>,
    answer: Option<Answer>,
    /// The answer, where it has come before all messages were sent.
    last: Option<Value>,
    messages: Option<mpsc::Receiver<Value>>,
    ticket: Ticket,
}

impl Wait {
    pub(super) fn new(answer: Answer, messages: Option<mpsc::Receiver<Value>>, ticket: Ticket) -> Self {
        Self { first: None, answer: Some(answer), last: None, messages, ticket }
    }

    /// The next message; none after the answer, and none once the ticket is cancelled. Cancel-safe.
    pub(super) async fn message(&mut self) -> Option<Value> {
        loop {
            let waiting = || self.messages.as_mut()?.try_recv().ok();
            if let Some(message) = self.first.take().or_else(waiting) {
                return Some(message);
            }
            if let Some(last) = self.last.take() {
                self.messages = None;
                return Some(last);
            }
            let is_silent = self.messages.as_ref().is_none_or(mpsc::Receiver::is_closed);
            if is_silent && self.answer.is_none() {
                return None;
            }
            tokio::select! {
                Some(message) = next(&mut self.messages), if !is_silent => return Some(message),
                (_, answer) = poll_answer(&mut self.answer) => {
                    self.answer = None;
                    self.last = Some(answer);
                }
                () = self.ticket.token.cancelled() => return None,
            }
        }
    }

    fn events(self: Box<Self>) -> impl Stream<Item = Bytes> + Send {
        stream::unfold(self, |mut wait| async move {
            match tokio::time::timeout(SIGN_OF_LIFE, wait.message()).await {
                Ok(message) => message.map(|message| (event(&message), wait)),
                Err(_) => Some((Bytes::from_static(b": still running\n\n"), wait)),
            }
        })
    }
}

async fn next(messages: &mut Option<mpsc::Receiver<Value>>) -> Option<Value> {
    messages.as_mut()?.recv().await
}

async fn poll_answer(answer: &mut Option<Answer>) -> (StatusCode, Value) {
    match answer {
        Some(answer) => answer.await,
        None => std::future::pending().await,
    }
}

fn stream_of(events: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, Body::from_stream(events.map(Ok::<_, Infallible>))).into_response()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::client::Outlet;
    use crate::in_flight::InFlight;

    fn json_after(seconds: u64) -> Answer {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            (StatusCode::OK, json!({"id": 1}))
        })
    }

    fn is_event_stream(response: &Response) -> bool {
        response.headers()[header::CONTENT_TYPE].as_bytes().starts_with(b"text/event-stream")
    }

    async fn text(response: Response) -> String {
        String::from_utf8(axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap().into()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_quick_answer_is_json() {
        let (_outlet, messages) = Outlet::new();
        let response = respond(json_after(3), Some(messages), InFlight::default().enter(None), Manner::default()).await;
        assert_eq!(text(response).await, r#"{"id":1}"#);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_is_a_stream_with_signs_of_life() {
        let (_outlet, messages) = Outlet::new();
        let response =
            respond(json_after(50), Some(messages), InFlight::default().enter(None), Manner::default()).await;
        assert!(is_event_stream(&response));
        assert_eq!(text(response).await, ": still running\n\n: still running\n\nevent: message\ndata: {\"id\":1}\n\n");
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_so_also_where_nothing_can_come_before_it() {
        let respond = |answer| respond(answer, None, InFlight::default().enter(None), Manner::default());
        assert_eq!(text(respond(json_after(3)).await).await, r#"{"id":1}"#);
        assert_eq!(text(respond(json_after(20)).await).await, "event: message\ndata: {\"id\":1}\n\n");
    }

    #[tokio::test(start_paused = true)]
    async fn it_can_be_a_stream_at_once() {
        let (_outlet, messages) = Outlet::new();
        let manner = Manner { always_streams: true, ..Manner::default() };
        let response = respond(json_after(1), Some(messages), InFlight::default().enter(None), manner).await;
        assert_eq!(text(response).await, "event: message\ndata: {\"id\":1}\n\n");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_only_json_gets_it_in_the_end() {
        let manner = Manner { only_json: true, ..Manner::default() };
        let response = respond(json_after(1000), None, InFlight::default().enter(None), manner).await;
        assert_eq!(text(response).await, r#"{"id":1}"#);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_sent_before_the_answer_comes_before_it() {
        for (at, answer) in [(0, 0), (1, 2), (0, 20)] {
            let (outlet, messages) = Outlet::new();
            let answer: Answer = Box::pin(async move {
                tokio::time::sleep(Duration::from_secs(at)).await;
                outlet.notify("a", None);
                outlet.notify("b", None);
                json_after(answer - at).await
            });
            let body =
                text(respond(answer, Some(messages), InFlight::default().enter(None), Manner::default()).await).await;
            let place = |what: &str| body.find(what).unwrap_or_else(|| panic!("{what}: {body}"));
            assert!(place("\"a\"") < place("\"b\"") && place("\"b\"") < place("\"id\""), "{body}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_call_ends_early_or_late() {
        for seconds in [5, 50] {
            let ticket = InFlight::default().enter(None);
            let token = ticket.token.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                token.cancel();
            });
            let (dropped, mut witness) = mpsc::channel::<()>(1);
            let answer = Box::pin(async move {
                let _dropped = dropped;
                json_after(100).await
            });
            let (_outlet, messages) = Outlet::new();
            let body = text(respond(answer, Some(messages), ticket, Manner::default()).await).await;
            assert!(!body.contains("data:"), "{body}");
            assert_eq!(witness.recv().await, None);
        }
    }
}
