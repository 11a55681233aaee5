//! Passes one request on to a server, and what comes back to the client: progress, log messages, questions.
//!
//! Servers and clients may be of different eras. A server of the legacy era asks its questions while the call runs; one
//! of the modern era answers the call with them and is called again. Each is turned into what the other side knows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::attended::Heard;
use super::parked::{Parked, Running};
use crate::clean;
use crate::client::{Context, Outlet};
use crate::era::{CAPABILITIES_KEY, Era};
use crate::http::subject;
use crate::rpc::RpcError;
use crate::upstream::{Incoming, Outgoing, RawAnswer, Upstream, UpstreamError};

/// Messages of one call that may wait to be passed on.
const WAITING: usize = 64;

/// How often a server may answer one call with questions.
const MOST_ROUNDS: usize = 10;

/// Passes a request on, for as long as the caller waits. What was parked by an earlier request of a modern client is
/// taken up again.
pub(super) async fn pass(
    upstream: &Upstream,
    parked: &Parked,
    method: &str,
    params: Value,
    context: &Context,
    heard: &Arc<Heard>,
) -> Result<Value, UpstreamError> {
    match (context.era, upstream.era().is_modern()) {
        (Era::Modern, false) => {
            let about = (method.to_owned(), subject(method, &params).map(str::to_owned));
            let running = match parked.take(&params, &about, &context.principal)? {
                Some(running) => running.answered(params["inputResponses"].as_object().cloned().unwrap_or_default()),
                None => Running::start(upstream.clone(), method, params),
            };
            parked.follow(running, about, context, heard).await
        }
        (Era::Legacy, true) => ask_in_rounds(upstream, method, params, context, heard).await,
        (Era::Legacy, false) | (Era::Modern, true) => attend(upstream, method, params, context, heard).await,
    }
}

/// One call, with all that belongs to it passed on as it comes.
async fn attend(
    upstream: &Upstream,
    method: &str,
    params: Value,
    context: &Context,
    heard: &Arc<Heard>,
) -> Result<Value, UpstreamError> {
    let (related, mut incoming) = mpsc::channel(WAITING);
    let call = upstream.call(Outgoing {
        method: method.to_owned(),
        params: Some(params).filter(|params| !params.is_null()),
        cancel: context.cancel.clone(),
        // However much it is heard of: the caller sets a limit to the whole.
        deadline: Some(Duration::MAX),
        related: Some(related),
    });
    let mut call = std::pin::pin!(call);
    let mut questions = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(message) = incoming.recv() => {
                heard.note();
                match message {
                    Incoming::Notification { method, params } => notify(&context.outlet, context, &method, params),
                    Incoming::Request { method, params, answer } => {
                        let (context, asking) = (context.clone(), heard.asking());
                        questions.spawn(async move {
                            let outcome = ask(&context, &method, params).await;
                            let _ = answer.send(outcome);
                            drop(asking);
                        });
                    }
                }
            }
            result = &mut call => {
                while let Ok(Incoming::Notification { method, params }) = incoming.try_recv() {
                    notify(&context.outlet, context, &method, params);
                }
                return result;
            }
        }
    }
}

/// Calls a tool for code, which hears nothing on the way and cannot be asked anything.
pub(super) async fn pass_raw(
    upstream: &Upstream,
    mut params: Value,
    cancel: &CancellationToken,
) -> Result<RawAnswer, UpstreamError> {
    if upstream.era().is_modern() {
        declare(&mut params, &json!({}));
    }
    // What belongs to this call must not be taken for that of another one, whose client would be asked.
    let (related, mut incoming) = mpsc::channel(WAITING);
    let call = upstream.call_raw(Outgoing {
        method: "tools/call".to_owned(),
        params: Some(params),
        cancel: cancel.clone(),
        // However much it is heard of: the caller sets a limit to the whole.
        deadline: Some(Duration::MAX),
        related: Some(related),
    });
    let mut call = std::pin::pin!(call);
    loop {
        tokio::select! {
            biased;
            Some(message) = incoming.recv() => if let Incoming::Request { method, answer, .. } = message {
                let refusal = format!("{method} is not offered: the call was made by code");
                let _ = answer.send(Err(RpcError::new(RpcError::METHOD_NOT_FOUND, refusal)));
            },
            answer = &mut call => return answer,
        }
    }
}

/// Passes a notification on, unless the client has not asked for such.
pub(super) fn notify(outlet: &Outlet, context: &Context, method: &str, mut params: Option<Value>) {
    if method == "notifications/message" {
        let level = params.as_ref().and_then(|params| params["level"].as_str()).unwrap_or_default();
        let wanted = context.client.as_ref().and_then(|client| client.log_level());
        if wanted.is_some_and(|wanted| severity(level) < severity(&wanted)) {
            return;
        }
    }
    params.as_mut().into_iter().for_each(clean::message);
    outlet.notify(method, params);
}

/// From the least to the most severe; what is not known is passed on.
pub(super) fn severity(level: &str) -> usize {
    const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
    LEVELS.iter().position(|known| *known == level).unwrap_or(LEVELS.len())
}

/// Asks the client what a server wants to know.
async fn ask(context: &Context, method: &str, mut params: Option<Value>) -> Result<Value, RpcError> {
    let capability = capability(method);
    if capability.is_none_or(|capability| !context.client_can(capability)) {
        return Err(RpcError::new(RpcError::METHOD_NOT_FOUND, format!("the client does not offer {method}")));
    }
    params.as_mut().into_iter().for_each(clean::message);
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
    heard: &Arc<Heard>,
) -> Result<Value, UpstreamError> {
    declare(&mut params, &context.capabilities);
    for _ in 0..MOST_ROUNDS {
        let mut result = attend(upstream, method, params.clone(), context, heard).await?;
        if result["resultType"] != "input_required" {
            return Ok(result);
        }
        heard.note();
        let _asking = heard.asking();
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
    use crate::upstream::Eras;
    use crate::upstream::tests::peer::{Peer, connect_with, legacy};

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

    #[tokio::test]
    async fn code_is_not_asked_and_hears_no_progress() {
        let (upstream, mut peer, _incoming) = legacy().await;
        let never = CancellationToken::new();
        let call = pass_raw(&upstream, json!({"name": "t"}), &never);
        let (answer, ()) = tokio::join!(call, async {
            let request = peer.hear().await;
            assert_eq!(request["params"], json!({"name": "t"}));
            for method in ["elicitation/create", "sampling/createMessage", "roots/list"] {
                peer.say(json!({"jsonrpc": "2.0", "id": method, "method": method})).await;
                assert_eq!(peer.hear().await["error"]["code"], RpcError::METHOD_NOT_FOUND, "{method}");
            }
            for _ in 0..2 * WAITING {
                peer.say(json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})).await;
            }
            peer.say_raw(&format!("{{\"id\":{},\"result\":{{\"z\":1.50,  \"a\":1}}}}\n", request["id"])).await;
        });
        assert_eq!(answer.unwrap().as_ref(), br#"{"z":1.50,  "a":1}"#);
    }

    #[tokio::test]
    async fn a_modern_server_is_told_that_code_can_do_nothing_for_it() {
        let (upstream, mut peer, _incoming) =
            connect_with(Eras::Auto, async |peer: &mut Peer| peer.be_modern(json!({})).await).await;
        let upstream = upstream.unwrap();
        let never = CancellationToken::new();
        let (answer, ()) = tokio::join!(pass_raw(&upstream, json!({"name": "t"}), &never), async {
            let request = peer.hear().await;
            assert_eq!(request["params"]["_meta"][CAPABILITIES_KEY], json!({}));
            peer.answer(&request, json!({"resultType": "input_required", "inputRequests": {}})).await;
        });
        assert!(answer.unwrap().head().asks_for_input);
    }
}
