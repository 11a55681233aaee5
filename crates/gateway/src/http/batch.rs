//! Several messages in one request, as the protocol had them until 2025-06-18.
//!
//! They are served one after the other: a batch has one place among the requests, and no more is done for it at a time
//! than for any other.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::mcp::{Caller, bad_request};
use super::patience::{self, Manner};
use crate::client::Outlet;
use crate::era;
use crate::rpc::{self, Id, Message, RpcError};

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
                Ok(Message::Request { id, method, params }) => requests.push((id, method, params)),
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
        let answer = async move {
            for (id, method, params) in requests {
                answers.extend(self.asked_among_others(id, &method, params, &outlet).await);
            }
            (StatusCode::OK, Value::Array(answers))
        };
        patience::respond(Box::pin(answer), messages, ticket, manner).await
    }

    /// The answer to a request, unless it is cancelled.
    async fn asked_among_others(&self, id: Id, method: &str, params: Value, outlet: &Outlet) -> Option<Value> {
        let era = self.era_of(method, &params).and_then(|era| era::check_among_others(method, era).map(|()| era));
        let outcome = match era {
            Err(error) => Err(error),
            Ok(era) => {
                let ticket = self.enter(Some(&id));
                let context = self.context(id.clone(), era, &params, outlet.clone(), self.client());
                let _gone = context.cancel.clone().drop_guard();
                tokio::select! {
                    outcome = self.gateway.serve(method, params, &context) => outcome,
                    () = ticket.token.cancelled() => return None,
                }
            }
        };
        Some(rpc::answer(Some(&id), outcome))
    }
}
