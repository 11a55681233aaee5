//! One exchange with a server: the request, its messages on the way, and the result.
//!
//! Server and client may be of different eras. A server of the legacy era sends requests to the client while the call
//! runs; one of the modern era returns them as the result and is called again. Each is translated for the other side.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ringfence_mcp::client::Context;
use ringfence_mcp::era::{CAPABILITIES_KEY, Era};
use ringfence_mcp::http::subject;
use ringfence_mcp::rpc::RpcError;
use ringfence_mcp::sanitize;
use ringfence_mcp::upstream::{Incoming, OutgoingCall, RawResult, Upstream, UpstreamError};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::call_deadline::CallProgress;
use super::pending_input::{PendingInput, RunningCall};
use crate::connection::ServerLink;

/// Maximum number of messages of one call that wait to be forwarded.
pub(super) const MAX_QUEUED_MESSAGES: usize = 64;

/// Maximum number of requests for input in one call.
const MAX_INPUT_ROUNDS: usize = 10;

/// One exchange with a server, in the form that the caller needs.
pub(super) trait Exchange: Sync {
    type Output: CallResult + Send;

    fn run(
        &self,
        link: &ServerLink,
        params: Value,
        progress: &Arc<CallProgress>,
    ) -> impl Future<Output = Result<Self::Output, UpstreamError>> + Send;
}

/// For a client, which gets the messages on the way and the result as JSON.
pub(super) struct ClientExchange<'a> {
    pub(super) pending_input: &'a PendingInput,
    pub(super) method: &'a str,
    pub(super) context: &'a Context,
}

impl Exchange for ClientExchange<'_> {
    type Output = Value;

    async fn run(
        &self,
        link: &ServerLink,
        params: Value,
        progress: &Arc<CallProgress>,
    ) -> Result<Value, UpstreamError> {
        let upstream = link.upstream_for(self.context.era).await;
        forward(upstream, self.pending_input, self.method, params, self.context, progress).await
    }
}

/// For code, which gets the bytes of the result of a tool.
pub(super) struct CodeExchange<'a> {
    pub(super) cancel: &'a CancellationToken,
}

impl Exchange for CodeExchange<'_> {
    type Output = RawResult;

    async fn run(&self, link: &ServerLink, params: Value, _: &Arc<CallProgress>) -> Result<RawResult, UpstreamError> {
        call_raw(&link.upstream, params, self.cancel).await
    }
}

/// A result in the form in which the caller gets it.
pub(super) trait CallResult {
    /// Whether the tool failed.
    fn is_error(&self) -> bool;

    /// Whether the server requests input that the caller cannot give.
    fn needs_input(&self) -> bool;
}

impl CallResult for Value {
    fn is_error(&self) -> bool {
        self["isError"] == true
    }

    /// Clients can give input.
    fn needs_input(&self) -> bool {
        false
    }
}

impl CallResult for RawResult {
    fn is_error(&self) -> bool {
        self.flags().is_error
    }

    fn needs_input(&self) -> bool {
        self.flags().is_input_required
    }
}

/// Forwards a request of a client, and continues a call that waits for input of the client.
async fn forward(
    upstream: &Upstream,
    pending_input: &PendingInput,
    method: &str,
    params: Value,
    context: &Context,
    progress: &Arc<CallProgress>,
) -> Result<Value, UpstreamError> {
    match (context.era, upstream.era().is_modern()) {
        (Era::Modern, false) => {
            let key = (method.to_owned(), subject(method, &params).map(str::to_owned));
            let call = match pending_input.take(&params, &key, &context.principal)? {
                Some(call) => call.with_input(params["inputResponses"].as_object().cloned().unwrap_or_default()),
                None => RunningCall::start(upstream.clone(), method, params),
            };
            pending_input.wait(call, key, context, progress).await
        }
        (Era::Legacy, true) => call_in_rounds(upstream, method, params, context, progress).await,
        (Era::Legacy, false) | (Era::Modern, true) => call(upstream, method, params, context, progress).await,
    }
}

/// Calls a server, and forwards its messages to the client and the client's responses to the server.
async fn call(
    upstream: &Upstream,
    method: &str,
    params: Value,
    context: &Context,
    progress: &Arc<CallProgress>,
) -> Result<Value, UpstreamError> {
    let (related, mut incoming) = mpsc::channel(MAX_QUEUED_MESSAGES);
    let call = upstream.call(OutgoingCall {
        method: method.to_owned(),
        params: Some(params).filter(|params| !params.is_null()),
        cancel: context.cancel.clone(),
        // The caller of this function has the deadline.
        idle_timeout: Some(Duration::MAX),
        related: Some(related),
    });
    let mut call = std::pin::pin!(call);
    let mut requests = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(message) = incoming.recv() => {
                progress.message_received();
                match message {
                    Incoming::Notification { method, params } => notify(context, &method, params),
                    Incoming::Request { method, params, reply } => {
                        let (context, guard) = (context.clone(), progress.request_to_client());
                        requests.spawn(async move {
                            let outcome = call_client(&context, &method, params).await;
                            let _ = reply.send(outcome);
                            drop(guard);
                        });
                    }
                }
            }
            result = &mut call => {
                while let Ok(Incoming::Notification { method, params }) = incoming.try_recv() {
                    notify(context, &method, params);
                }
                return result;
            }
        }
    }
}

/// Calls a tool for code, which gets no messages on the way. Requests of the server are refused.
async fn call_raw(
    upstream: &Upstream,
    mut params: Value,
    cancel: &CancellationToken,
) -> Result<RawResult, UpstreamError> {
    if upstream.era().is_modern() {
        declare_capabilities(&mut params, &json!({}));
    }
    // Without this channel the messages of this call could be attributed to the call of a client.
    let (related, mut incoming) = mpsc::channel(MAX_QUEUED_MESSAGES);
    let call = upstream.call_raw(OutgoingCall {
        method: "tools/call".to_owned(),
        params: Some(params),
        cancel: cancel.clone(),
        // The caller of this function has the deadline.
        idle_timeout: Some(Duration::MAX),
        related: Some(related),
    });
    let mut call = std::pin::pin!(call);
    loop {
        tokio::select! {
            biased;
            Some(message) = incoming.recv() => if let Incoming::Request { method, reply, .. } = message {
                let message = format!("{method} is not supported: the tool was called by code");
                let _ = reply.send(Err(RpcError::new(RpcError::METHOD_NOT_FOUND, message)));
            },
            result = &mut call => return result,
        }
    }
}

/// Forwards a notification, unless it is a log message below the client's level.
pub(super) fn notify(context: &Context, method: &str, mut params: Option<Value>) {
    if method == "notifications/message" {
        let level = params.as_ref().and_then(|params| params["level"].as_str()).unwrap_or_default();
        let minimum = context.client.as_ref().and_then(|client| client.log_level());
        if minimum.is_some_and(|minimum| severity(level) < severity(&minimum)) {
            return;
        }
    }
    params.as_mut().into_iter().for_each(sanitize::message);
    context.sink.notify(method, params);
}

/// Returns the severity of a log level as a number. Unknown levels are the most severe, so that they are forwarded.
pub(crate) fn severity(level: &str) -> usize {
    const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
    LEVELS.iter().position(|known| *known == level).unwrap_or(LEVELS.len())
}

/// Forwards a request of a server to the client.
async fn call_client(context: &Context, method: &str, mut params: Option<Value>) -> Result<Value, RpcError> {
    let capability = required_capability(method);
    if capability.is_none_or(|capability| !context.client_can(capability)) {
        return Err(RpcError::new(RpcError::METHOD_NOT_FOUND, format!("the client does not support {method}")));
    }
    params.as_mut().into_iter().for_each(sanitize::message);
    match &context.client {
        Some(client) => client.call(&context.sink, method, params, &context.cancel).await,
        None => {
            Err(RpcError::new(RpcError::METHOD_NOT_FOUND, "the client cannot be called: it has not sent `initialize`"))
        }
    }
}

/// The capability that a client needs for a request of a server.
pub(super) fn required_capability(method: &str) -> Option<&'static str> {
    match method {
        "elicitation/create" => Some("elicitation"),
        "sampling/createMessage" => Some("sampling"),
        "roots/list" => Some("roots"),
        _ => None,
    }
}

/// Declares the capabilities of the client to a modern server. Replaces values of the client that are no objects.
fn declare_capabilities(params: &mut Value, capabilities: &Value) {
    if !params.is_object() {
        *params = json!({});
    }
    if !params["_meta"].is_object() {
        params["_meta"] = json!({});
    }
    let declared = if capabilities.is_object() { capabilities.clone() } else { json!({}) };
    params["_meta"][CAPABILITIES_KEY] = declared;
}

/// Calls a modern server for a legacy client: gets the requested input from the client, and calls the server again with it.
async fn call_in_rounds(
    upstream: &Upstream,
    method: &str,
    mut params: Value,
    context: &Context,
    progress: &Arc<CallProgress>,
) -> Result<Value, UpstreamError> {
    declare_capabilities(&mut params, &context.capabilities);
    for _ in 0..MAX_INPUT_ROUNDS {
        let mut result = call(upstream, method, params.clone(), context, progress).await?;
        if result["resultType"] != "input_required" {
            return Ok(result);
        }
        progress.message_received();
        let _guard = progress.request_to_client();
        let requests: BTreeMap<String, Value> =
            serde_json::from_value(result["inputRequests"].take()).unwrap_or_default();
        let mut responses = Map::new();
        for (key, mut request) in requests {
            let method = request["method"].as_str().unwrap_or_default().to_owned();
            let request_params = request.get_mut("params").map(Value::take);
            let response = call_client(context, &method, request_params).await.map_err(UpstreamError::Rpc)?;
            responses.insert(key, response);
        }
        params["inputResponses"] = Value::Object(responses);
        match result.get_mut("requestState").map(Value::take) {
            Some(state) => params["requestState"] = state,
            None => {
                params.as_object_mut().map(|params| params.shift_remove("requestState"));
            }
        }
    }
    let message = format!("the server requested input {MAX_INPUT_ROUNDS} times, the maximum");
    Err(UpstreamError::Rpc(RpcError::new(RpcError::INVALID_PARAMS, message)))
}

#[cfg(test)]
mod tests;
