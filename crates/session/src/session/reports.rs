//! Completes calls: adds the facts about the session that their results report, changes its state, and replies.

use std::sync::Arc;
use std::time::Duration;

use ringfence_backend::Instance;
use ringfence_core::Failure;
use tokio::sync::oneshot;

use super::queues::{Call, Work};
use crate::api::Status;
use crate::calls::{CallDeadline, Outcome};
use crate::network::InstanceNetwork;
use crate::state::{Change, SessionState, UseGuard};

/// Maximum time in which calls end after their instance was killed.
pub(super) const STOPPED_CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// A call that runs.
pub(super) struct OpenCall {
    pub(super) number: u64,
    /// The number of processes that had been killed for memory, and were reported, when the call started.
    memory_kills: u64,
    guard: UseGuard,
    reply: oneshot::Sender<Result<Outcome, Failure>>,
}

/// The facts about a session and its instance that the next results report.
pub(super) struct Reports {
    state: Arc<SessionState>,
    pub(super) network: InstanceNetwork,
    memory_limit: u64,
    /// The number of processes killed for memory that was reported already.
    memory_kills: u64,
    /// A notice for the next caller.
    pub(super) pending_notice: Option<String>,
    last_call: u64,
}

impl Reports {
    pub(super) fn new(
        state: Arc<SessionState>,
        network: InstanceNetwork,
        memory_limit: u64,
        memory_kills: u64,
        pending_notice: Option<String>,
    ) -> Self {
        Self { state, network, memory_limit, memory_kills, pending_notice, last_call: 0 }
    }

    /// Starts a call. Returns its work and its deadline. Returns `None` if the session is ending; the caller of the call
    /// then gets "not found".
    pub(super) fn begin(&mut self, call: Call) -> Option<(OpenCall, Work, Option<CallDeadline>)> {
        let Call { work, timeout, cancel, questions, guard, reply } = call;
        self.state.change(Change::CallStarted).ok()?;
        self.last_call += 1;
        self.network.begin_call(self.last_call, questions);
        let open = OpenCall { number: self.last_call, memory_kills: self.memory_kills, guard, reply };
        let deadline = if cancel.is_cancelled() { None } else { Some(CallDeadline::new(timeout, cancel)) };
        Some((open, work, deadline))
    }

    /// Completes a call and replies. `is_lost` says whether the instance has ended.
    pub(super) async fn complete(
        &mut self,
        call: OpenCall,
        mut result: Result<Outcome, Failure>,
        instance: &Instance,
        is_lost: bool,
    ) {
        let kills = instance.memory_kills();
        self.memory_kills = self.memory_kills.max(kills);
        if let Ok(outcome) = &mut result
            && (kills > call.memory_kills || (is_lost && instance.has_exceeded_memory().await))
        {
            let limit = ringfence_core::bytes::format(self.memory_limit);
            outcome.notices.push(format!("a process was killed: the session exceeded its memory limit of {limit}"));
        }
        let refused_hosts = self.network.end_call(call.number);
        if let Ok(outcome) = &mut result {
            outcome.notices.extend(self.pending_notice.take());
            outcome.refused_hosts = refused_hosts;
        }
        // Before the reply, so that a caller that has it also sees an idle session.
        self.state.touch();
        let _ = self.state.change(Change::CallFinished);
        drop(call.guard);
        // The caller may no longer wait.
        let _ = call.reply.send(result);
    }
}

/// The outcome of a call that was cancelled before it started.
pub(super) fn cancelled_in_queue() -> Outcome {
    let notice = "the call was cancelled while it was queued, and did not run";
    Outcome::not_run(Status::Cancelled, notice.into())
}

/// The outcome of a call whose session was stopped.
pub(super) fn stopped(outcome: Outcome) -> Outcome {
    let notices = vec!["the session was stopped while the call ran".into()];
    Outcome { status: Status::Killed, notices, ..outcome }
}
