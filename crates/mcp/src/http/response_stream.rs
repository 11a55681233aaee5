//! Sends the response to one request: as JSON if it is there soon and nothing precedes it, else as an event stream.
//!
//! An event stream is kept open with comments, because proxies and clients close connections that are silent for long.
//! Dropping the response at any time drops the call, unless its client may resume the stream (`replay`).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use crate::client::Client;
use crate::in_flight::Ticket;
use crate::pending_response::{PendingResponse, ResponseFuture, recv};
use crate::replay::{KEEP_ALIVE, KEEP_ALIVE_PERIOD, event};

/// Time after which a response becomes an event stream. Refusals with an HTTP status are decided well before this.
const STREAM_AFTER: Duration = Duration::from_secs(10);

/// Initial buffer for a response.
const INITIAL_BYTES: usize = 1 << 10;

/// Size of a response that takes long to encode.
const LARGE_BYTES: usize = 1 << 20;

/// The forms in which a client accepts a response.
#[derive(Clone, Default)]
pub(super) struct Form {
    /// The client accepts nothing but the response.
    pub(super) only_json: bool,
    /// The response is an event stream even if nothing precedes it.
    pub(super) always_streams: bool,
    /// The client that may resume the stream.
    pub(super) client: Option<Arc<Client>>,
}

/// Responds as soon as there is something to send, or with an empty response once the ticket is cancelled. Without
/// `messages` nothing can precede the response.
pub(super) async fn respond(
    mut future: ResponseFuture,
    mut messages: Option<mpsc::Receiver<Value>>,
    ticket: Ticket,
    form: Form,
) -> Response {
    if form.only_json {
        return tokio::select! {
            (status, response) = &mut future => json(status, response).await,
            () = ticket.token.cancelled() => StatusCode::ACCEPTED.into_response(),
        };
    }
    let pending = tokio::select! {
        biased;
        (status, response) = &mut future => {
            let first = messages.as_mut().and_then(|messages| messages.try_recv().ok());
            if first.is_none() && !(form.always_streams && status == StatusCode::OK) {
                return json(status, response).await;
            }
            PendingResponse::ready(first, response, messages, ticket)
        }
        Some(first) = recv(&mut messages) => PendingResponse::new(future, messages, ticket).with_first(first),
        () = tokio::time::sleep(STREAM_AFTER) => PendingResponse::new(future, messages, ticket),
        () = ticket.token.cancelled() => return StatusCode::ACCEPTED.into_response(),
    };
    let recorded = match form.client {
        Some(client) => client.replays().record(Box::new(pending)),
        None => Err(Box::new(pending)),
    };
    match recorded {
        Ok(events) => event_stream(events),
        Err(pending) => event_stream(events(pending)),
    }
}

async fn json(status: StatusCode, response: Value) -> Response {
    let mut budget = LARGE_BYTES;
    let encoded = if exceeds(&response, &mut budget) {
        // Off the runtime's threads, so that other requests are served meanwhile.
        spawn_blocking(move || encode(&response)).await.ok().flatten()
    } else {
        encode(&response)
    };
    let json = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    encoded
        .map_or_else(|| StatusCode::INTERNAL_SERVER_ERROR.into_response(), |text| (status, json, text).into_response())
}

fn encode(response: &Value) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(INITIAL_BYTES);
    serde_json::to_writer(&mut text, response).ok().map(|()| text)
}

/// Subtracts the size of all texts from the budget, and returns whether they exceed it.
pub(super) fn exceeds(value: &Value, budget: &mut usize) -> bool {
    match value {
        Value::String(text) => {
            let left = budget.checked_sub(text.len());
            *budget = left.unwrap_or(0);
            left.is_none()
        }
        Value::Array(items) => items.iter().any(|item| exceeds(item, budget)),
        Value::Object(fields) => fields.values().any(|field| exceeds(field, budget)),
        _ => false,
    }
}

/// Returns an event stream of messages until their sender is dropped.
pub(super) fn endless(messages: mpsc::Receiver<Value>, ticket: Ticket) -> Response {
    event_stream(events(Box::new(PendingResponse::endless(messages, ticket))))
}

/// Returns the rest of a stream whose connection broke.
pub(super) fn resume(client: &Client, last_event_id: &str) -> Option<Response> {
    client.replays().resume(last_event_id).map(event_stream)
}

fn events(pending: Box<PendingResponse>) -> impl Stream<Item = Bytes> + Send {
    stream::unfold(pending, |mut pending| async move {
        match tokio::time::timeout(KEEP_ALIVE_PERIOD, pending.next()).await {
            Ok(message) => message.map(|message| (event(&message), pending)),
            Err(_) => Some((Bytes::from_static(KEEP_ALIVE), pending)),
        }
    })
}

fn event_stream(events: impl Stream<Item = Bytes> + Send + 'static) -> Response {
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
    use crate::client::MessageSink;
    use crate::in_flight::InFlight;

    fn response_after(seconds: u64) -> ResponseFuture {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            (StatusCode::OK, json!({"id": 1}))
        })
    }

    fn ticket() -> Ticket {
        InFlight::default().enter(None)
    }

    fn is_event_stream(response: &Response) -> bool {
        response.headers()[header::CONTENT_TYPE].as_bytes().starts_with(b"text/event-stream")
    }

    async fn text(response: Response) -> String {
        String::from_utf8(axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap().into()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn quick_response_is_json() {
        let (_sink, messages) = MessageSink::new();
        let response = respond(response_after(3), Some(messages), ticket(), Form::default()).await;
        assert_eq!(text(response).await, r#"{"id":1}"#);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_response_is_a_stream_that_is_kept_open() {
        let (_sink, messages) = MessageSink::new();
        let response = respond(response_after(50), Some(messages), ticket(), Form::default()).await;
        assert!(is_event_stream(&response));
        assert_eq!(text(response).await, ": still running\n\n: still running\n\nevent: message\ndata: {\"id\":1}\n\n");
    }

    #[tokio::test(start_paused = true)]
    async fn form_is_the_same_without_a_channel_for_messages() {
        let respond = |future| respond(future, None, ticket(), Form::default());
        assert_eq!(text(respond(response_after(3)).await).await, r#"{"id":1}"#);
        assert_eq!(text(respond(response_after(20)).await).await, "event: message\ndata: {\"id\":1}\n\n");
    }

    #[tokio::test(start_paused = true)]
    async fn response_can_be_a_stream_from_the_start() {
        let (_sink, messages) = MessageSink::new();
        let form = Form { always_streams: true, ..Form::default() };
        let response = respond(response_after(1), Some(messages), ticket(), form).await;
        assert_eq!(text(response).await, "event: message\ndata: {\"id\":1}\n\n");
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_accepts_only_json_gets_it_after_any_time() {
        let form = Form { only_json: true, ..Form::default() };
        let response = respond(response_after(1000), None, ticket(), form).await;
        assert_eq!(text(response).await, r#"{"id":1}"#);
    }

    #[tokio::test(start_paused = true)]
    async fn messages_precede_the_response() {
        for (at, total) in [(0, 0), (1, 2), (0, 20)] {
            let (sink, messages) = MessageSink::new();
            let future: ResponseFuture = Box::pin(async move {
                tokio::time::sleep(Duration::from_secs(at)).await;
                sink.notify("a", None);
                sink.notify("b", None);
                response_after(total - at).await
            });
            let body = text(respond(future, Some(messages), ticket(), Form::default()).await).await;
            let position = |text: &str| body.find(text).unwrap_or_else(|| panic!("{text}: {body}"));
            assert!(position("\"a\"") < position("\"b\"") && position("\"b\"") < position("\"id\""), "{body}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_call_ends_before_and_after_the_stream_starts() {
        for seconds in [5, 50] {
            let ticket = ticket();
            let token = ticket.token.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                token.cancel();
            });
            let (dropped, mut witness) = mpsc::channel::<()>(1);
            let future = Box::pin(async move {
                let _dropped = dropped;
                response_after(100).await
            });
            let (_sink, messages) = MessageSink::new();
            let body = text(respond(future, Some(messages), ticket, Form::default()).await).await;
            assert!(!body.contains("data:"), "{body}");
            assert_eq!(witness.recv().await, None);
        }
    }
}
