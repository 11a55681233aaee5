//! Calls to legacy servers on behalf of modern clients, which get a request for input as a result and come back with
//! another request.
//!
//! While the client prepares its input, the call waits here under a name that cannot be guessed and that is valid only
//! for its owner. A client that comes back too late has lost the call. The server learns that when the next call is stored
//! here, or when its own request times out.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use ringfence_core::Principal;
use ringfence_core::sync::Mutex;
use ringfence_mcp::client::Context;
use ringfence_mcp::rpc::RpcError;
use ringfence_mcp::upstream::{Incoming, OutgoingCall, Upstream, UpstreamError};
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::call_deadline::CallProgress;
use super::exchange::{MAX_QUEUED_MESSAGES, notify, required_capability};

/// Maximum time for a client to come back with the input, which a person may have to give.
const INPUT_TIMEOUT: Duration = Duration::from_mins(10);

/// Maximum time for a server to be silent in a call that waits here.
const SILENCE_TIMEOUT: Duration = Duration::from_mins(5);

/// Maximum number of waiting calls; the oldest are dropped first.
const MAX_CALLS: usize = 256;

/// Distinguishes our `requestState` values from those of servers.
const STATE_PREFIX: &str = "ringfence:";

/// The method of a request, and its subject.
pub(super) type RequestKey = (String, Option<String>);

#[derive(Default)]
pub(super) struct PendingInput(Mutex<HashMap<String, WaitingCall>>);

struct WaitingCall {
    call: RunningCall,
    principal: Principal,
    /// Only the same request continues the call.
    key: RequestKey,
    expires: Instant,
}

/// A call that runs in a task, independent of the request that started it.
pub(super) struct RunningCall {
    result: oneshot::Receiver<Result<Value, UpstreamError>>,
    incoming: mpsc::Receiver<Incoming>,
    open_requests: BTreeMap<String, oneshot::Sender<Result<Value, RpcError>>>,
    request_count: u32,
    _cancel_on_drop: DropGuard,
    cancel: CancellationToken,
}

impl RunningCall {
    pub(super) fn start(upstream: Upstream, method: &str, params: Value) -> Self {
        let cancel = CancellationToken::new();
        let (related, incoming) = mpsc::channel(MAX_QUEUED_MESSAGES);
        let (sender, result) = oneshot::channel();
        let outgoing = OutgoingCall {
            method: method.to_owned(),
            params: Some(params).filter(|params| !params.is_null()),
            cancel: cancel.clone(),
            idle_timeout: Some(SILENCE_TIMEOUT),
            related: Some(related),
        };
        // The task ends with the call, at the latest when the token is cancelled.
        tokio::spawn(async move {
            let _ = sender.send(upstream.call(outgoing).await);
        });
        Self {
            result,
            incoming,
            open_requests: BTreeMap::new(),
            request_count: 0,
            _cancel_on_drop: cancel.clone().drop_guard(),
            cancel,
        }
    }

    /// Passes the input of the client to the server.
    pub(super) fn with_input(mut self, input: Map<String, Value>) -> Self {
        for (key, response) in input {
            if let Some(request) = self.open_requests.remove(&key) {
                let _ = request.send(Ok(response));
            }
        }
        self
    }
}

impl PendingInput {
    /// Waits for the result, or for a request for input: then the call is stored.
    pub(super) async fn wait(
        &self,
        mut call: RunningCall,
        key: RequestKey,
        context: &Context,
        progress: &CallProgress,
    ) -> Result<Value, UpstreamError> {
        loop {
            tokio::select! {
                biased;
                Some(message) = call.incoming.recv() => match message {
                    Incoming::Notification { method, params } => {
                        progress.message_received();
                        notify(context, &method, params);
                    }
                    Incoming::Request { method, params, reply } => {
                        if required_capability(&method).is_none_or(|capability| !context.client_can(capability)) {
                            let message = format!("the client does not support {method}");
                            let _ = reply.send(Err(RpcError::new(RpcError::METHOD_NOT_FOUND, message)));
                            continue;
                        }
                        call.request_count += 1;
                        let input_key = format!("input-{}", call.request_count);
                        call.open_requests.insert(input_key.clone(), reply);
                        let mut request = json!({"method": method});
                        if let Some(params) = params {
                            request["params"] = params;
                        }
                        let state = self.store(call, &context.principal, key);
                        return Ok(json!({
                            "resultType": "input_required",
                            "inputRequests": {input_key: request},
                            "requestState": state,
                        }));
                    }
                },
                result = &mut call.result => {
                    return result.unwrap_or_else(|_| {
                        Err(UpstreamError::Closed { may_have_run: true, reason: "the call was dropped".into() })
                    });
                }
                () = context.cancel.cancelled() => {
                    call.cancel.cancel();
                    return Err(UpstreamError::Cancelled);
                }
            }
        }
    }

    fn store(&self, call: RunningCall, principal: &Principal, key: RequestKey) -> String {
        let state = format!("{STATE_PREFIX}{}", uuid::Uuid::new_v4());
        let now = Instant::now();
        let mut calls = self.0.lock();
        calls.retain(|_, call| call.expires > now);
        if calls.len() >= MAX_CALLS {
            let oldest = calls.iter().min_by_key(|(_, call)| call.expires).map(|(state, _)| state.clone());
            oldest.and_then(|oldest| calls.remove(&oldest));
        }
        let waiting = WaitingCall { call, principal: principal.clone(), key, expires: now + INPUT_TIMEOUT };
        calls.insert(state.clone(), waiting);
        state
    }

    /// Returns the call that a request continues, if its `requestState` is one of ours.
    pub(super) fn take(
        &self,
        params: &Value,
        key: &RequestKey,
        principal: &Principal,
    ) -> Result<Option<RunningCall>, UpstreamError> {
        let Some(state) = params["requestState"].as_str().filter(|state| state.starts_with(STATE_PREFIX)) else {
            return Ok(None);
        };
        let mut calls = self.0.lock();
        let is_valid =
            |call: &WaitingCall| call.principal == *principal && call.key == *key && call.expires > Instant::now();
        let found = calls.get(state).is_some_and(is_valid).then(|| calls.remove(state)).flatten();
        let unknown = || {
            RpcError::new(
                RpcError::INVALID_PARAMS,
                "the requestState is unknown or has expired; send the request again",
            )
        };
        found.map(|found| Some(found.call)).ok_or_else(|| UpstreamError::Rpc(unknown()))
    }
}
