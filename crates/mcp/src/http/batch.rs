//! Several messages in one request, as the protocol had them before 2025-06-18.
//!
//! They are handled one after the other within the timeout of one request: a batch takes one slot, and costs no more at
//! a time than any other request.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use super::endpoint::{Caller, bad_request};
use super::response_stream::{self, Form};
use crate::client::MessageSink;
use crate::in_flight::Ticket;
use crate::rpc::{Id, Message, Outcome, RpcError};
use crate::service::Service;
use crate::{era, failure, rpc};

/// Maximum size of all responses of a batch. Requests after it are refused without being handled.
const MAX_RESPONSE_BYTES: usize = 16 << 20;

/// A request of a batch, which can be cancelled before its turn.
struct BatchedRequest {
    id: Id,
    method: String,
    params: Value,
    ticket: Ticket,
}

impl<S: Service> Caller<S> {
    pub(super) async fn handle_batch(self, batch: Vec<Result<Message, RpcError>>) -> Response {
        let allows_batches =
            self.version().is_none_or(era::has_batches) && self.client().is_none_or(|client| client.may_send_batches());
        if !allows_batches {
            return bad_request(None, era::no_batches());
        }
        let (mut requests, mut responses) = (Vec::new(), Vec::new());
        for message in batch {
            match message {
                Err(error) => responses.push(rpc::response(None, Err(error))),
                Ok(Message::Response { id, outcome }) => drop(self.handle_response(&id, outcome)),
                Ok(Message::Notification { method, params }) => drop(self.handle_notification(&method, &params)),
                Ok(Message::Request { id, method, params }) => {
                    let ticket = self.enter(Some(&id));
                    requests.push(BatchedRequest { id, method, params, ticket });
                }
            }
        }
        if requests.is_empty() && responses.is_empty() {
            return StatusCode::ACCEPTED.into_response();
        }
        let form = Form { only_json: self.accepts_only_json(), ..Form::default() };
        let (sink, messages) = if form.only_json {
            (MessageSink::closed(), None)
        } else {
            let (sink, messages) = MessageSink::new();
            (sink, Some(messages))
        };
        let ticket = self.enter(None);
        let timeout = self.service.request_timeout();
        let deadline = Instant::now() + timeout;
        let future = async move {
            let mut budget = MAX_RESPONSE_BYTES;
            for BatchedRequest { id, method, params, ticket } in requests {
                let handled = async {
                    match budget {
                        0 => Err(failure::busy(
                            "the responses to this batch are too large; send this request separately",
                        )),
                        _ => self.handle_one(&id, &method, params, &sink).await,
                    }
                };
                let outcome = tokio::select! {
                    biased;
                    // A client that cancels a request expects no response to it.
                    () = ticket.token.cancelled() => continue,
                    () = sleep_until(deadline) => Err(failure::render(failure::timed_out(timeout))),
                    outcome = handled => outcome,
                };
                let response = rpc::response(Some(&id), outcome);
                response_stream::exceeds(&response, &mut budget);
                responses.push(response);
            }
            let status = if responses.is_empty() { StatusCode::ACCEPTED } else { StatusCode::OK };
            (status, Value::Array(responses))
        };
        response_stream::respond(Box::pin(future), messages, ticket, form).await
    }

    async fn handle_one(&self, id: &Id, method: &str, params: Value, sink: &MessageSink) -> Outcome {
        let era = self.era_of(method, &params)?;
        era::check_in_batch(method, era)?;
        let context = self.context(id.clone(), era, &params, sink.clone(), self.client());
        let _cancel = context.cancel.clone().drop_guard();
        self.service.handle(method, params, &context).await
    }
}
