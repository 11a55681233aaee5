//! The task that owns a session's instance: runs one call at a time, in order of arrival, until the session is stopped or
//! expires.

use std::sync::Arc;
use std::time::Duration;

use ringfence_backend::{Event, Instance};
use ringfence_core::{Failure, Kind, Language};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::api::Status;
use crate::calls::{CallDeadline, Outcome, StateAfterCall, run_command};
use crate::host_calls::HostCalls;
use crate::kernel::{INTERPRETER_DIED, Kernel, Starting};
use crate::network::{InstanceNetwork, QuestionSender};
use crate::state::{Change, EndReason, SessionState, UseGuard};

/// Pause before the idle timeout is checked again, if the session was in use when it expired.
const IDLE_RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time in which a call ends after its instance was killed.
const STOPPED_CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// The notice if the interpreter of a dead server cannot be used.
const STATE_LOST: &str = "the server was restarted and the interpreter's state is lost; files are kept";

/// The code or command of a call.
pub(crate) enum Work {
    Code(String, Option<HostCalls>),
    Command(String),
}

impl Work {
    /// Its kind and its text.
    pub(crate) fn describe(&self) -> (&'static str, &str) {
        match self {
            Self::Code(code, _) => ("code", code),
            Self::Command(command) => ("command", command),
        }
    }
}

/// A call in the queue of a session.
pub(crate) struct Call {
    pub(crate) work: Work,
    pub(crate) timeout: Duration,
    pub(crate) cancel: CancellationToken,
    /// Handles questions about hosts while the call runs.
    pub(crate) questions: Option<QuestionSender>,
    pub(crate) guard: UseGuard,
    pub(crate) reply: oneshot::Sender<Result<Outcome, Failure>>,
}

/// The state of the task. The instance ends with it.
pub(crate) struct SessionTask {
    pub(crate) instance: Instance,
    /// The interpreter, if it is running.
    pub(crate) kernel: Option<Kernel>,
    /// The interpreter, if it was started and is not ready.
    pub(crate) starting: Option<Starting>,
    pub(crate) network: InstanceNetwork,
    pub(crate) language: Language,
    pub(crate) memory_limit: u64,
    pub(crate) state: Arc<SessionState>,
    pub(crate) calls: mpsc::Receiver<Call>,
    pub(crate) idle_timeout: Duration,
    /// The time until the session reaches its maximum age.
    pub(crate) remaining_age: Option<Duration>,
    /// A notice for the next caller.
    pub(crate) pending_notice: Option<String>,
    pub(crate) was_used: bool,
    /// The number of processes killed for memory that was reported already.
    pub(crate) memory_kills: u64,
}

/// The rest of a session whose instance has ended.
pub(crate) struct LostInstance {
    pub(crate) calls: mpsc::Receiver<Call>,
    /// An instance that is lost before its first call would probably be lost again.
    pub(crate) was_used: bool,
}

impl SessionTask {
    /// Runs until the session ends, with the reason in its state, or until the instance is lost.
    pub(crate) async fn run(mut self) -> Option<LostInstance> {
        // A timer of zero does not expire immediately.
        if self.remaining_age.is_some_and(|remaining| remaining.is_zero()) {
            self.state.end(EndReason::AgeExpired);
            return None;
        }
        let mut kernel = self.kernel.take();
        self.resynchronize(&mut kernel).await;
        // One timer for all calls: uses of the session only postpone the idle timeout.
        let idle_end = sleep(self.idle_timeout.saturating_sub(self.state.unused_for()));
        let age_end = sleep(self.remaining_age.unwrap_or_default());
        tokio::pin!(idle_end, age_end);
        loop {
            tokio::select! {
                biased;
                () = self.state.stopped() => {
                    self.leave_if_requested();
                    return None;
                }
                () = age_end.as_mut(), if self.remaining_age.is_some() => {
                    self.state.end(EndReason::AgeExpired);
                    return None;
                }
                call = self.calls.recv() => {
                    let Some(call) = call else {
                        self.state.end(EndReason::Stopped);
                        return None;
                    };
                    // Callers that wait for a session that is ending get "not found".
                    if self.state.change(Change::CallStarted).is_err() {
                        return None;
                    }
                    self.was_used = true;
                    if self.run_call(call, &mut kernel).await == StateAfterCall::SandboxLost {
                        return Some(self.lost());
                    }
                }
                event = self.instance.event() => {
                    if event == Event::Lost {
                        return Some(self.lost());
                    }
                    self.handle_event(event, &mut kernel);
                }
                () = idle_end.as_mut() => {
                    // File transfers and processes use the session without this task, and a call may be announced.
                    let remaining = self.idle_timeout.saturating_sub(self.state.unused_for());
                    if remaining.is_zero() && self.state.stop_if_idle(EndReason::IdleExpired) {
                        return None;
                    }
                    idle_end.as_mut().reset(Instant::now() + remaining.max(IDLE_RECHECK_INTERVAL));
                }
                // Last: a guest that floods it must not postpone the idle timeout.
                never = self.network.collect(None) => match never {},
            }
        }
    }

    /// Forgets an interpreter that has ended by itself: there will be no other event about it.
    fn handle_event(&mut self, event: Event, kernel: &mut Option<Kernel>) {
        // The next call starts another interpreter. If that fails too, the caller gets the error.
        self.starting.take_if(|starting| starting.is_ended_by(event));
        if kernel.take_if(|kernel| kernel.is_ended_by(event)).is_some() {
            self.pending_notice = Some(INTERPRETER_DIED.into());
        }
    }

    fn leave_if_requested(&mut self) {
        if self.state.is_left() {
            self.instance.leave();
        }
    }

    fn lost(self) -> LostInstance {
        LostInstance { calls: self.calls, was_used: self.was_used }
    }

    /// Makes an adopted interpreter usable.
    async fn resynchronize(&mut self, kernel: &mut Option<Kernel>) {
        let Some(adopted) = kernel else { return };
        let result = tokio::select! {
            result = adopted.resynchronize(&self.instance) => result,
            () = self.state.stopped() => return,
        };
        if let Err(error) = result {
            tracing::warn!("an interpreter could not be taken over: {error}");
            *kernel = None;
            self.pending_notice = Some(STATE_LOST.into());
        }
    }

    async fn run_call(&mut self, call: Call, kernel: &mut Option<Kernel>) -> StateAfterCall {
        let Call { work, timeout, cancel, questions, guard, reply } = call;
        let mut network = std::mem::take(&mut self.network);
        let (state, kill_handle) = (Arc::clone(&self.state), self.instance.kill_handle());
        let run = async {
            if cancel.is_cancelled() {
                let notice = "the call was cancelled while it was queued, and did not run";
                return (Ok(Outcome::not_run(Status::Cancelled, notice.into())), StateAfterCall::Alive);
            }
            let deadline = CallDeadline::new(timeout, cancel);
            match work {
                Work::Command(command) => {
                    let mut other_events = Vec::new();
                    let (outcome, state_after) =
                        run_command(&mut self.instance, &command, deadline, &mut other_events).await;
                    for event in other_events {
                        self.handle_event(event, kernel);
                    }
                    (Ok(outcome), state_after)
                }
                Work::Code(code, host) => self.execute(&code, host, deadline, kernel).await,
            }
        };
        let (mut result, state_after) = {
            tokio::pin!(run);
            tokio::select! {
                finished = &mut run => finished,
                never = network.collect(questions.as_ref()) => match never {},
                () = state.stopped() => if state.is_left() {
                    // The next server interrupts the call when it takes the session over.
                    (Ok(Outcome::new(Status::Cancelled)), StateAfterCall::SandboxLost)
                } else {
                    // The call ends with its instance, and its result has the output until then.
                    kill_handle.kill();
                    let finished = timeout_at(Instant::now() + STOPPED_CALL_TIMEOUT, run).await;
                    let outcome = finished.ok().and_then(|(result, _)| result.ok());
                    let outcome = outcome.unwrap_or_else(|| Outcome::new(Status::Killed));
                    let notices = vec!["the session was stopped while the call ran".into()];
                    (Ok(Outcome { status: Status::Killed, notices, ..outcome }), StateAfterCall::SandboxLost)
                }
            }
        };
        let kills = self.instance.memory_kills();
        if let Ok(outcome) = &mut result
            && (kills > std::mem::replace(&mut self.memory_kills, kills)
                || (state_after == StateAfterCall::SandboxLost && self.instance.has_exceeded_memory().await))
        {
            let limit = ringfence_core::bytes::format(self.memory_limit);
            outcome.notices.push(format!("a process was killed: the session exceeded its memory limit of {limit}"));
        }
        if let Ok(outcome) = &mut result {
            outcome.notices.extend(self.pending_notice.take());
            outcome.refused_hosts = network.take_refused();
        }
        self.network = network;
        // Before the reply, so that a caller that has it also sees an idle session.
        self.state.touch();
        let _ = self.state.change(Change::CallFinished);
        drop(guard);
        // The caller may have gone away.
        let _ = reply.send(result);
        self.leave_if_requested();
        state_after
    }

    async fn start_kernel(&mut self) -> Result<Kernel, String> {
        match self.starting.take() {
            Some(starting) if starting.is_stored() => Ok(starting.without_waiting()),
            Some(starting) => starting.finish(&self.instance).await,
            None => Kernel::start(&mut self.instance, self.language).await,
        }
    }

    fn start_failure(&self, reason: &str) -> Failure {
        let message = format!("the {} interpreter could not be started: {reason}", self.language.interpreter());
        Failure::new(Kind::SandboxCreation, message).hint("`ringfence doctor` shows what this host has")
    }

    async fn execute(
        &mut self,
        code: &str,
        host: Option<HostCalls>,
        deadline: CallDeadline,
        kernel: &mut Option<Kernel>,
    ) -> (Result<Outcome, Failure>, StateAfterCall) {
        let mut running = match kernel.take() {
            Some(running) => running,
            None => match self.start_kernel().await {
                Ok(started) => started,
                Err(reason) => {
                    let is_lost = self.instance.kill_if_stuck().await;
                    let state_after =
                        if is_lost { StateAfterCall::SandboxLost } else { StateAfterCall::InterpreterEnded };
                    return (Err(self.start_failure(&reason)), state_after);
                }
            },
        };
        let (outcome, state_after) = running.execute(&self.instance, code, host, deadline).await;
        if state_after == StateAfterCall::NeverReady {
            return (Err(self.start_failure(&outcome.notices.concat())), StateAfterCall::InterpreterEnded);
        }
        if state_after == StateAfterCall::Alive {
            *kernel = Some(running);
        }
        (Ok(outcome), state_after)
    }
}
