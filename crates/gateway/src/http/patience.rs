//! Keeps the connection of a long call alive.
//!
//! An answer that comes soon is plain JSON. One that takes longer becomes an event stream with a sign
//! of life now and then, since proxies and clients give up on connections that are silent.
//! Dropping the response, at any time, drops the call.

use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};

use super::in_flight::Ticket;

/// Every refusal that has an HTTP status of its own is decided well before this.
const SOON: Duration = Duration::from_secs(10);
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);

type Answer = Pin<Box<dyn Future<Output = Response> + Send>>;

enum Wait {
    ForAnswer(Answer),
    ForBody(BodyDataStream),
    Done,
}

/// Answers as soon as there is something to say, or with nothing once the ticket is cancelled.
pub(super) async fn respond(mut answer: Answer, streams: bool, ticket: Ticket) -> Response {
    let soon = if streams { SOON } else { Duration::MAX };
    let wait = tokio::select! {
        response = &mut answer => {
            if !is_event_stream(&response) {
                return response;
            }
            Wait::ForBody(response.into_body().into_data_stream())
        }
        () = tokio::time::sleep(soon) => Wait::ForAnswer(answer),
        () = ticket.token.cancelled() => return StatusCode::ACCEPTED.into_response(),
    };
    event_stream(wait, ticket)
}

fn event_stream(wait: Wait, ticket: Ticket) -> Response {
    let cancelled = ticket.token.clone().cancelled_owned();
    let events = stream::unfold((wait, ticket), |(wait, ticket)| async move {
        let (chunk, wait) = advance(wait).await?;
        Some((chunk, (wait, ticket)))
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, Body::from_stream(events.take_until(cancelled))).into_response()
}

async fn advance(wait: Wait) -> Option<(Result<Bytes, axum::Error>, Wait)> {
    match wait {
        Wait::ForAnswer(mut answer) => {
            let Ok(response) = tokio::time::timeout(SIGN_OF_LIFE, &mut answer).await else {
                return Some((Ok(Bytes::from_static(b": still running\n\n")), Wait::ForAnswer(answer)));
            };
            if is_event_stream(&response) {
                let mut body = response.into_body().into_data_stream();
                return body.next().await.map(|chunk| (chunk, Wait::ForBody(body)));
            }
            // JSON as serde writes it holds no line break, so it is one line of an event.
            let json = axum::body::to_bytes(response.into_body(), usize::MAX).await;
            Some((json.map(|json| [b"data: ", json.as_ref(), b"\n\n"].concat().into()), Wait::Done))
        }
        Wait::ForBody(mut body) => body.next().await.map(|chunk| (chunk, Wait::ForBody(body))),
        Wait::Done => None,
    }
}

fn is_event_stream(response: &Response) -> bool {
    response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::in_flight::InFlight;

    fn json_after(seconds: u64) -> Answer {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            axum::Json(serde_json::json!({"id": 1})).into_response()
        })
    }

    async fn text(response: Response) -> String {
        String::from_utf8(axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap().into()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_quick_answer_is_json() {
        let response = respond(json_after(3), true, InFlight::default().enter(None)).await;
        assert_eq!(text(response).await, r#"{"id":1}"#);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_is_a_stream_with_signs_of_life() {
        let response = respond(json_after(50), true, InFlight::default().enter(None)).await;
        assert!(is_event_stream(&response));
        assert_eq!(text(response).await, ": still running\n\n: still running\n\ndata: {\"id\":1}\n\n");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_only_json_gets_it_in_the_end() {
        let response = respond(json_after(1000), false, InFlight::default().enter(None)).await;
        assert_eq!(text(response).await, r#"{"id":1}"#);
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
            let (dropped, mut witness) = tokio::sync::mpsc::channel::<()>(1);
            let answer = Box::pin(async move {
                let _dropped = dropped;
                json_after(100).await
            });
            let body = text(respond(answer, true, ticket).await).await;
            assert!(!body.contains("data:"), "{body}");
            assert_eq!(witness.recv().await, None);
        }
    }
}
