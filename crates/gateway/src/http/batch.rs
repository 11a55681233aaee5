//! Several messages in one request, as the protocol had them until 2025-06-18.
//!
//! They are served one after the other, within the time of one: a batch has one place among the requests, and no more is
//! done for it at a time than for any other.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use super::mcp::{Caller, bad_request};
use super::patience::{self, Manner};
use crate::client::Outlet;
use crate::gateway::too_long;
use crate::in_flight::Ticket;
use crate::rpc;
use crate::rpc::{Id, Message, Outcome, RpcError};
use crate::{busy, era, failure};

/// Of all its answers; once they have more, what follows is not begun.
const MOST_BYTES: usize = 16 << 20;

impl Caller {
    pub(super) async fn asked_together(self, batch: Vec<Result<Message, RpcError>>) -> Response {
        let is_of_a_version_with_them =
            self.version().is_none_or(era::has_batches) && self.client().is_none_or(|client| client.may_send_batches());
        if !is_of_a_version_with_them {
            return bad_request(None, era::no_batches());
        }
        let (mut requests, mut answers) = (Vec::new(), Vec::new());
        for message in batch {
            match message {
                Err(error) => answers.push(rpc::answer(None, Err(error))),
                Ok(Message::Answer { id, outcome }) => drop(self.answered(&id, outcome)),
                Ok(Message::Notification { method, params }) => drop(self.notified(&method, &params)),
                Ok(Message::Request { id, method, params }) => {
                    let ticket = self.enter(Some(&id));
                    requests.push(Asked { id, method, params, ticket });
                }
            }
        }
        if requests.is_empty() && answers.is_empty() {
            return StatusCode::ACCEPTED.into_response();
        }
        let manner = Manner { only_json: self.takes_only_json(), ..Manner::default() };
        let (outlet, messages) = if manner.only_json {
            (Outlet::closed(), None)
        } else {
            let (outlet, messages) = Outlet::new();
            (outlet, Some(messages))
        };
        let ticket = self.enter(None);
        let deadline = Instant::now() + self.gateway.patience();
        let answer = async move {
            let mut room = MOST_BYTES;
            for Asked { id, method, params, ticket } in requests {
                let asked = async {
                    match room {
                        0 => Err(busy::error("the answers to this batch have become too large: ask for this alone")),
                        _ => self.asked_among_others(&id, &method, params, &outlet).await,
                    }
                };
                let outcome = tokio::select! {
                    biased;
                    // Whoever cancels does not wait for an answer.
                    () = ticket.token.cancelled() => continue,
                    () = sleep_until(deadline) => Err(failure::render(too_long(self.gateway.patience()))),
                    outcome = asked => outcome,
                };
                let answer = rpc::answer(Some(&id), outcome);
                patience::is_larger(&answer, &mut room);
                answers.push(answer);
            }
            let status = if answers.is_empty() { StatusCode::ACCEPTED } else { StatusCode::OK };
            (status, Value::Array(answers))
        };
        patience::respond(Box::pin(answer), messages, ticket, manner).await
    }

    async fn asked_among_others(&self, id: &Id, method: &str, params: Value, outlet: &Outlet) -> Outcome {
        let era = self.era_of(method, &params)?;
        era::check_among_others(method, era)?;
        let context = self.context(id.clone(), era, &params, outlet.clone(), self.client());
        let _gone = context.cancel.clone().drop_guard();
        self.gateway.serve(method, params, &context).await
    }
}

/// One of its requests, which can be cancelled before its turn comes.
struct Asked {
    id: Id,
    method: String,
    params: Value,
    ticket: Ticket,
}
