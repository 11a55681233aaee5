//! A response that is being computed, with the messages that precede it.

use std::pin::Pin;

use axum::http::StatusCode;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::in_flight::Ticket;

/// Computes the response to a request, and its HTTP status if nothing was sent before it.
pub(crate) type ResponseFuture = Pin<Box<dyn Future<Output = (StatusCode, Value)> + Send>>;

/// The messages of one request in the order in which the client gets them. Dropping it drops the call.
pub(crate) struct PendingResponse {
    first: Option<Value>,
    future: Option<ResponseFuture>,
    /// The response, if it is there before all messages were sent.
    response: Option<Value>,
    messages: Option<mpsc::Receiver<Value>>,
    ticket: Ticket,
}

impl PendingResponse {
    pub(crate) fn new(future: ResponseFuture, messages: Option<mpsc::Receiver<Value>>, ticket: Ticket) -> Self {
        Self { first: None, future: Some(future), response: None, messages, ticket }
    }

    /// A response that is there, behind messages that were not sent yet.
    pub(crate) fn ready(
        first: Option<Value>,
        response: Value,
        messages: Option<mpsc::Receiver<Value>>,
        ticket: Ticket,
    ) -> Self {
        Self { first, future: None, response: Some(response), messages, ticket }
    }

    /// Messages without a response, until their sender is dropped.
    pub(crate) fn endless(messages: mpsc::Receiver<Value>, ticket: Ticket) -> Self {
        Self { first: None, future: None, response: None, messages: Some(messages), ticket }
    }

    /// Puts a message that was received already before all others.
    #[must_use]
    pub(crate) fn with_first(self, first: Value) -> Self {
        Self { first: Some(first), ..self }
    }

    /// Returns the next message; None after the response, and once the ticket is cancelled. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            let received = || self.messages.as_mut()?.try_recv().ok();
            if let Some(message) = self.first.take().or_else(received) {
                return Some(message);
            }
            if let Some(response) = self.response.take() {
                self.messages = None;
                return Some(response);
            }
            let is_closed = self.messages.as_ref().is_none_or(mpsc::Receiver::is_closed);
            if is_closed && self.future.is_none() {
                return None;
            }
            tokio::select! {
                Some(message) = recv(&mut self.messages), if !is_closed => return Some(message),
                (_, response) = poll(&mut self.future) => {
                    self.future = None;
                    self.response = Some(response);
                }
                () = self.ticket.token.cancelled() => return None,
            }
        }
    }
}

/// Returns the next message, or None at once if there can be none.
pub(crate) async fn recv(messages: &mut Option<mpsc::Receiver<Value>>) -> Option<Value> {
    messages.as_mut()?.recv().await
}

async fn poll(future: &mut Option<ResponseFuture>) -> (StatusCode, Value) {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
