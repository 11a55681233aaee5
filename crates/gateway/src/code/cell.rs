//! One piece of code while it runs: what it asks is judged and answered here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ringfence_core::AuditEvent;
use ringfence_core::{Failure, Kind as FailureKind};
use ringfence_guest::HostResponse;
use ringfence_session::{Asked, HostCall, HostCalls};
use serde_json::Value;

use super::failure::{CallError, ErrorKind};
use super::grants::Granted;
use super::{Caller, CodeMode, Room};
use crate::policy::Action;

/// Refusals of one piece of code that are told in the audit; the others are only counted.
const TOLD_REFUSALS: u32 = 16;

pub(super) struct Cell {
    pub(super) mode: CodeMode,
    pub(super) caller: Caller,
    pub(super) room: Room,
    pub(super) granted: Granted,
    refusals: AtomicU32,
}

impl Cell {
    pub(super) fn new(mode: CodeMode, caller: Caller, room: Room, granted: Granted) -> Self {
        Self { mode, caller, room, granted, refusals: AtomicU32::new(0) }
    }

    /// The same, as the session takes it.
    pub(super) fn host_calls(self, preface: Option<Arc<str>>) -> HostCalls {
        let cell = Arc::new(self);
        HostCalls { preface, ask: Arc::new(move |asked| Self::hear(&cell, asked)) }
    }

    fn hear(cell: &Arc<Self>, asked: Asked) {
        match asked {
            Asked::Forged(why) => cell.refused(&Failure::new(FailureKind::Policy, why)),
            Asked::Call(call) => {
                let cell = Arc::clone(cell);
                let tasks = cell.mode.0.tasks.clone();
                // There are as many as calls may be open, and each has a deadline or ends with the store's answer.
                tasks.spawn(async move { cell.answer(call).await });
            }
        }
    }

    async fn answer(&self, call: HostCall) {
        let HostCall { method, params, cancel, note, reply } = call;
        let answered = match method.as_str() {
            method if !self.is_allowed(method) => {
                Err(CallError::new(ErrorKind::Refused, "the scope of this endpoint does not allow it"))
            }
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
            _ => Err(CallError::new(ErrorKind::Refused, "there is nothing of that name to ask")),
        };
        let answer = answered.unwrap_or_else(|error| {
            if matches!(error.kind, ErrorKind::Refused) {
                self.refused(&error.as_failure());
            }
            error.into_answer()
        });
        reply.send(answer).await;
    }

    fn is_allowed(&self, method: &str) -> bool {
        Action::of_host_call(method).is_none_or(|action| self.caller.policy.allows(action))
    }

    fn refused(&self, failure: &Failure) {
        if self.refusals.fetch_add(1, Ordering::Relaxed) < TOLD_REFUSALS {
            self.record(AuditEvent::refusal(failure));
        }
    }

    fn record(&self, event: AuditEvent) {
        self.mode.audit().record(event.by(&self.caller.principal, self.room.session.as_ref()));
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        let untold = self.refusals.load(Ordering::Relaxed).saturating_sub(TOLD_REFUSALS);
        if untold > 0 {
            let failure = Failure::new(FailureKind::Policy, format!("{untold} more requests of the same code"));
            self.record(AuditEvent::refusal(&failure));
        }
    }
}

/// What is answered with a value.
pub(super) fn told(value: &Value) -> HostResponse {
    HostResponse::result(value)
}
