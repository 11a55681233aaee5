//! Passes one request on to a server, and what comes back to the client: progress, log messages, questions.
//!
//! Servers and clients may be of different eras. A server of the legacy era asks its questions while the call runs; one
//! of the modern era answers the call with them and is called again. Each is turned into what the other side knows.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::parked::{Parked, Running};
use crate::client::{Context, Outlet};
use crate::era::{CAPABILITIES_KEY, Era};
use crate::http::subject;
use crate::rpc::RpcError;
use crate::upstream::{Incoming, Outgoing, Upstream, UpstreamError};

/// Messages of one call that may wait to be passed on.
const WAITING: usize = 64;

/// How often a server may answer one call with questions.
const MOST_ROUNDS: usize = 10;

/// How long a server may be silent in a call.
pub(super) const SILENCE: Duration = Duration::from_secs(300);

/// Passes a request on. What was parked by an earlier request of a modern client is taken up again.
pub(super) async fn pass(
    upstream: &Upstream,
    parked: &Parked,
    method: &str,
    params: Value,
    context: &Context,
) -> Result<Value, UpstreamError> {
    match (context.era, upstream.era().is_modern()) {
        (Era::Modern, false) => {
            let about = (method.to_owned(), subject(method, &params).map(str::to_owned));
            let running = match parked.take(&params, &about, &context.principal)? {
                Some(running) => running.answered(params["inputResponses"].as_object().cloned().unwrap_or_default()),
                None => Running::start(upstream.clone(), method, params),
            };
            parked.follow(running, about, context).await
        }
        (Era::Legacy, true) => ask_in_rounds(upstream, method, params, context).await,
        (Era::Legacy, false) | (Era::Modern, true) => attend(upstream, method, params, context).await,
    }
}

/// One call, with all that belongs to it passed on as it comes.
async fn attend(upstream: &Upstream, method: &str, params: Value, context: &Context) -> Result<Value, UpstreamError> {
    let (related, mut incoming) = mpsc::channel(WAITING);
    let call = upstream.call(Outgoing {
        method: method.to_owned(),
        params: Some(params).filter(|params| !params.is_null()),
        cancel: context.cancel.clone(),
        deadline: Some(SILENCE),
        related: Some(related),
    });
    let mut call = std::pin::pin!(call);
    let mut questions = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(message) = incoming.recv() => match message {
                Incoming::Notification { method, params } => notify(&context.outlet, context, &method, params),
                Incoming::Request { method, params, answer } => {
                    let context = context.clone();
                    questions.spawn(async move {
                        let outcome = ask(&context, &method, params).await;
                        let _ = answer.send(outcome);
                    });
                }
            },
            result = &mut call => {
                while let Ok(Incoming::Notification { method, params }) = incoming.try_recv() {
                    notify(&context.outlet, context, &method, params);
                }
                return result;
            }
        }
    }
}

/// Passes a notification on, unless the client has not asked for such.
pub(super) fn notify(outlet: &Outlet, context: &Context, method: &str, params: Option<Value>) {
    if method == "notifications/message" {
        let level = params.as_ref().and_then(|params| params["level"].as_str()).unwrap_or_default();
        let wanted = context.client.as_ref().and_then(|client| client.log_level());
        if wanted.is_some_and(|wanted| severity(level) < severity(&wanted)) {
            return;
        }
    }
    outlet.notify(method, params);
}

/// From the least to the most severe; what is not known is passed on.
pub(super) fn severity(level: &str) -> usize {
    const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
    LEVELS.iter().position(|known| *known == level).unwrap_or(LEVELS.len())
}

/// Asks the client what a server wants to know.
async fn ask(context: &Context, method: &str, params: Option<Value>) -> Result<Value, RpcError> {
    let capability = capability(method);
    if capability.is_none_or(|capability| !context.client_can(capability)) {
        return Err(RpcError::new(RpcError::METHOD_NOT_FOUND, format!("the client does not offer {method}")));
    }
    match &context.client {
        Some(client) => client.ask(&context.outlet, method, params, &context.cancel).await,
        None => {
            Err(RpcError::new(RpcError::METHOD_NOT_FOUND, "the client cannot be asked: it has opened no conversation"))
        }
    }
}

/// What a client must be able to do to answer a question.
pub(super) fn capability(method: &str) -> Option<&'static str> {
    match method {
        "elicitation/create" => Some("elicitation"),
        "sampling/createMessage" => Some("sampling"),
        "roots/list" => Some("roots"),
        _ => None,
    }
}

/// Tells a modern server what the client can do. What a client sent in the place of objects is not kept.
fn declare(params: &mut Value, capabilities: &Value) {
    if !params.is_object() {
        *params = json!({});
    }
    if !params["_meta"].is_object() {
        params["_meta"] = json!({});
    }
    let declared = if capabilities.is_object() { capabilities.clone() } else { json!({}) };
    params["_meta"][CAPABILITIES_KEY] = declared;
}

/// Calls a modern server for a legacy client: its questions are asked, and it is called again with the answers.
async fn ask_in_rounds(
    upstream: &Upstream,
    method: &str,
    mut params: Value,
    context: &Context,
) -> Result<Value, UpstreamError> {
    declare(&mut params, &context.capabilities);
    for _ in 0..MOST_ROUNDS {
        let mut result = attend(upstream, method, params.clone(), context).await?;
        if result["resultType"] != "input_required" {
            return Ok(result);
        }
        let questions: BTreeMap<String, Value> =
            serde_json::from_value(result["inputRequests"].take()).unwrap_or_default();
        let mut answers = Map::new();
        for (key, mut question) in questions {
            let method = question["method"].as_str().unwrap_or_default().to_owned();
            let asked = question.get_mut("params").map(Value::take);
            let answer = ask(context, &method, asked).await.map_err(UpstreamError::Rpc)?;
            answers.insert(key, answer);
        }
        params["inputResponses"] = Value::Object(answers);
        match result.get_mut("requestState").map(Value::take) {
            Some(state) => params["requestState"] = state,
            None => {
                params.as_object_mut().map(|params| params.shift_remove("requestState"));
            }
        }
    }
    let message = format!("the server asked for input {MOST_ROUNDS} times");
    Err(UpstreamError::Rpc(RpcError::new(RpcError::INVALID_PARAMS, message)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_parameters_become_plain_ones() {
        for odd in [json!(null), json!([1]), json!("x"), json!({"_meta": "x"}), json!({"_meta": [1], "a": 1})] {
            let mut params = odd.clone();
            declare(&mut params, &json!({"roots": {}}));
            assert_eq!(params["_meta"][CAPABILITIES_KEY], json!({"roots": {}}), "{odd}");
            declare(&mut params, &Value::Null);
            assert_eq!(params["_meta"][CAPABILITIES_KEY], json!({}), "{odd}");
        }
    }
}
