//! Calls to legacy servers on behalf of modern clients, who are asked by an answer and come back with another request.
//!
//! While the client thinks, the call waits here, under a name that cannot be guessed and that is good for its owner
//! alone. One that is not taken up in time is lost to its client; the server is told when the next one is parked, or when
//! it has waited as long as any question may.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use ringfence_core::Principal;
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::attended::Heard;
use super::link::lock;
use super::relay::{capability, notify};
use crate::client::Context;
use crate::rpc::RpcError;
use crate::upstream::{Incoming, Outgoing, Upstream, UpstreamError};

/// How long a person may think.
const PATIENCE: Duration = Duration::from_secs(600);

/// How long a server may be silent in a call that nobody waits for.
const SILENCE: Duration = Duration::from_secs(300);

/// The oldest beyond these are given up.
const MOST: usize = 256;

/// By which our states are told from those of servers.
const PREFIX: &str = "ringfence:";

/// The method of a request, and what it is about.
pub(super) type About = (String, Option<String>);

#[derive(Default)]
pub(crate) struct Parked(Mutex<HashMap<String, Waiting>>);

struct Waiting {
    running: Running,
    principal: Principal,
    /// The request that was asked about, and no other, takes it up.
    about: About,
    until: Instant,
}

/// A call that goes on whether or not somebody waits for it.
pub(super) struct Running {
    result: oneshot::Receiver<Result<Value, UpstreamError>>,
    incoming: mpsc::Receiver<Incoming>,
    questions: BTreeMap<String, oneshot::Sender<Result<Value, RpcError>>>,
    asked: u32,
    _cancel: DropGuard,
    cancel: CancellationToken,
}

impl Running {
    pub(super) fn start(upstream: Upstream, method: &str, params: Value) -> Self {
        let cancel = CancellationToken::new();
        let (related, incoming) = mpsc::channel(64);
        let (done, result) = oneshot::channel();
        let outgoing = Outgoing {
            method: method.to_owned(),
            params: Some(params).filter(|params| !params.is_null()),
            cancel: cancel.clone(),
            deadline: Some(SILENCE),
            related: Some(related),
        };
        // It ends with the call, and that with the token at the latest.
        tokio::spawn(async move {
            let _ = done.send(upstream.call(outgoing).await);
        });
        Self { result, incoming, questions: BTreeMap::new(), asked: 0, _cancel: cancel.clone().drop_guard(), cancel }
    }

    /// Hands over what the client has answered.
    pub(super) fn answered(mut self, answers: Map<String, Value>) -> Self {
        for (key, answer) in answers {
            if let Some(question) = self.questions.remove(&key) {
                let _ = question.send(Ok(answer));
            }
        }
        self
    }
}

impl Parked {
    /// Waits for the result, or for a question, with which the call is parked.
    pub(super) async fn follow(
        &self,
        mut running: Running,
        about: About,
        context: &Context,
        heard: &Heard,
    ) -> Result<Value, UpstreamError> {
        loop {
            tokio::select! {
                biased;
                Some(message) = running.incoming.recv() => match message {
                    Incoming::Notification { method, params } => {
                        heard.note();
                        notify(&context.outlet, context, &method, params);
                    }
                    Incoming::Request { method, params, answer } => {
                        if capability(&method).is_none_or(|capability| !context.client_can(capability)) {
                            let refusal = format!("the client does not offer {method}");
                            let _ = answer.send(Err(RpcError::new(RpcError::METHOD_NOT_FOUND, refusal)));
                            continue;
                        }
                        running.asked += 1;
                        let key = format!("input-{}", running.asked);
                        running.questions.insert(key.clone(), answer);
                        let mut question = json!({"method": method});
                        if let Some(params) = params {
                            question["params"] = params;
                        }
                        let state = self.park(running, &context.principal, about);
                        return Ok(json!({
                            "resultType": "input_required",
                            "inputRequests": {key: question},
                            "requestState": state,
                        }));
                    }
                },
                result = &mut running.result => {
                    return result.unwrap_or_else(|_| {
                        Err(UpstreamError::Closed { may_have_run: true, why: "the call was given up".into() })
                    });
                }
                () = context.cancel.cancelled() => {
                    running.cancel.cancel();
                    return Err(UpstreamError::Cancelled);
                }
            }
        }
    }

    fn park(&self, running: Running, principal: &Principal, about: About) -> String {
        let state = format!("{PREFIX}{}", uuid::Uuid::new_v4());
        let now = Instant::now();
        let mut waiting = lock(&self.0);
        waiting.retain(|_, waiting| waiting.until > now);
        if waiting.len() >= MOST {
            let oldest = waiting.iter().min_by_key(|(_, waiting)| waiting.until).map(|(state, _)| state.clone());
            oldest.and_then(|oldest| waiting.remove(&oldest));
        }
        let parked = Waiting { running, principal: principal.clone(), about, until: now + PATIENCE };
        waiting.insert(state.clone(), parked);
        state
    }

    /// The call that a request goes on with, if it says that it does.
    pub(super) fn take(
        &self,
        params: &Value,
        about: &About,
        principal: &Principal,
    ) -> Result<Option<Running>, UpstreamError> {
        let Some(state) = params["requestState"].as_str().filter(|state| state.starts_with(PREFIX)) else {
            return Ok(None);
        };
        let mut waiting = lock(&self.0);
        let is_right =
            |found: &Waiting| found.principal == *principal && found.about == *about && found.until > Instant::now();
        let found = waiting.get(state).is_some_and(is_right).then(|| waiting.remove(state)).flatten();
        let unknown =
            || RpcError::new(RpcError::INVALID_PARAMS, "the requestState is not known, or has expired: call anew");
        found.map(|found| Some(found.running)).ok_or_else(|| UpstreamError::Rpc(unknown()))
    }
}
