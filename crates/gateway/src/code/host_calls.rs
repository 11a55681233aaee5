//! Handles the requests that code sends to the host while it runs.

use std::sync::Arc;

use ringfence_core::{Failure, Kind};
use ringfence_guest::HostResponse;
use ringfence_session::{HostCall, HostCallEvent, HostCalls};
use serde_json::Value;

use super::call_error::CallError;
use super::{Caller, CodeMode, Target};
use crate::authorize::{Action, Object, SessionGrants, Subject};

/// One execution of code, with its permissions.
pub(super) struct CodeRun {
    pub(super) mode: CodeMode,
    pub(super) caller: Caller,
    pub(super) target: Target,
    pub(super) grants: SessionGrants,
}

impl CodeRun {
    pub(super) fn new(mode: CodeMode, mut caller: Caller, target: Target, grants: SessionGrants) -> Self {
        caller.authorizer = caller.authorizer.for_code(&caller.principal, target.session.as_ref());
        Self { mode, caller, target, grants }
    }

    /// Converts this into the handler that a session calls.
    pub(super) fn into_host_calls(self, preface: Option<Arc<str>>) -> HostCalls {
        let run = Arc::new(self);
        HostCalls { preface, on_event: Arc::new(move |event| Self::on_event(&run, event)) }
    }

    fn on_event(run: &Arc<Self>, event: HostCallEvent) {
        match event {
            HostCallEvent::Forged(reason) => {
                run.caller.authorizer.refuse(run.subject(), Failure::new(Kind::Policy, reason));
            }
            HostCallEvent::Call(call) => {
                let run = Arc::clone(run);
                let tasks = run.mode.0.tasks.clone();
                // The session limits the number of open calls, and each has a deadline or ends with the database.
                tasks.spawn(async move { run.handle(call).await });
            }
        }
    }

    /// The code as the subject of a decision.
    pub(super) fn subject(&self) -> Subject<'_> {
        Subject { principal: &self.caller.principal, session: self.target.session.as_ref(), grants: Some(&self.grants) }
    }

    async fn handle(&self, call: HostCall) {
        let HostCall { method, params, cancel, note, responder } = call;
        let result = match self.authorize(&method) {
            Err(error) => Err(error),
            Ok(()) => match method.as_str() {
                "tools/call" => self.call_tool(params.get(), &cancel, &note).await,
                "tools/list" => self.list_tools(params.get()).await,
                "tools/search" => self.search_tools(params.get()).await,
                "servers/list" => Ok(self.list_servers().await),
                "saved/save" => self.save_tool(params.get()).await,
                "saved/list" => self.list_saved().await,
                "saved/load" => self.load_saved(params.get()).await,
                "saved/delete" => self.delete_saved(params.get()).await,
                "memory/save" => self.save_memory(params.get()).await,
                "memory/load" => self.load_memory(params.get()).await,
                "memory/delete" => self.delete_memory(params.get()).await,
                "memory/list" => self.list_memories().await,
                "memory/info" => self.memory_info(params.get()).await,
                _ => {
                    let unknown = Failure::new(Kind::Policy, "unknown method of the host");
                    Err(self.caller.authorizer.refuse(self.subject(), unknown).into())
                }
            },
        };
        responder.send(result.unwrap_or_else(CallError::into_response)).await;
    }

    fn authorize(&self, method: &str) -> Result<(), CallError> {
        let action = match method.split_once('/').map(|(prefix, _)| prefix) {
            Some("tools" | "servers") => Action::UseServers,
            Some("saved" | "memory") => Action::UseMemory,
            _ => return Ok(()),
        };
        Ok(self.caller.authorizer.authorize(self.subject(), action, Object::Endpoint)?)
    }
}

/// Encodes a result for code.
pub(super) fn result(value: &Value) -> HostResponse {
    HostResponse::result(value)
}
