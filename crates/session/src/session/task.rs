//! The task that owns a session's instance: runs code in order of arrival and commands beside it, until the session is
//! stopped or expires.

use std::sync::Arc;
use std::time::Duration;

use ringfence_backend::{Event, Instance};
use ringfence_core::{Failure, Kind, Language};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::commands::RunningCommands;
use super::queues::{Call, CallQueues, Work};
use super::reports::{Reports, STOPPED_CALL_TIMEOUT, cancelled_in_queue, stopped};
use crate::api::Status;
use crate::calls::{CallDeadline, Code, Outcome, StateAfterCall};
use crate::kernel::{INTERPRETER_DIED, Kernel, Starting};
use crate::state::{EndReason, SessionState};

/// Pause before the idle timeout is checked again, if the session was in use when it expired.
const IDLE_RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The notice if the interpreter of a dead server cannot be used.
const STATE_LOST: &str = "the server was restarted and the interpreter's state is lost; files are kept";

/// The state of the task. The instance ends with it.
pub(crate) struct SessionTask {
    pub(crate) instance: Arc<Instance>,
    /// The interpreter, if it is running.
    pub(crate) kernel: Option<Kernel>,
    /// The interpreter, if it was started and is not ready.
    pub(crate) starting: Option<Starting>,
    pub(crate) language: Language,
    pub(crate) state: Arc<SessionState>,
    pub(crate) queues: CallQueues,
    pub(super) commands: RunningCommands,
    pub(super) reports: Reports,
    pub(crate) idle_timeout: Duration,
    /// The time at which the session reaches its maximum age.
    pub(crate) age_end: Option<Instant>,
    pub(crate) was_used: bool,
}

/// The rest of a session whose instance has ended.
pub(crate) struct LostInstance {
    pub(crate) queues: CallQueues,
    /// An instance that is lost before its first call would probably be lost again.
    pub(crate) was_used: bool,
}

impl SessionTask {
    /// Runs until the session ends, with the reason in its state, or until the instance is lost.
    pub(crate) async fn run(mut self) -> Option<LostInstance> {
        let mut kernel = self.kernel.take();
        if !self.has_reached_age() {
            self.resynchronize(&mut kernel).await;
        }
        // One timer for all calls: uses of the session only postpone the idle timeout.
        let idle_end = sleep(self.idle_timeout.saturating_sub(self.state.unused_for()));
        let age_end = sleep_until(self.age_end.unwrap_or_else(Instant::now));
        tokio::pin!(idle_end, age_end);
        loop {
            // Calls that arrive later must not prolong the session.
            let accepts_calls = !self.has_reached_age();
            tokio::select! {
                biased;
                () = self.state.stopped() => {
                    self.end_commands().await;
                    return None;
                }
                () = age_end.as_mut(), if self.age_end.is_some() && self.commands.is_empty() => {
                    self.state.end(EndReason::AgeExpired);
                    return None;
                }
                call = self.queues.code.recv(), if accepts_calls => {
                    let Some(call) = call else {
                        self.state.end(EndReason::Stopped);
                        return None;
                    };
                    self.was_used = true;
                    if self.run_code(call, &mut kernel).await == StateAfterCall::SandboxLost {
                        return Some(self.lost().await);
                    }
                }
                Some(call) = self.queues.commands.recv(), if accepts_calls && self.commands.has_capacity() => {
                    self.was_used = true;
                    self.commands.start(call, &self.instance, &mut self.reports).await;
                }
                event = self.instance.event() => {
                    if event == Event::Lost {
                        return Some(self.lost().await);
                    }
                    self.handle_event(event, &mut kernel);
                }
                Some((call, outcome)) = self.commands.next() => {
                    let is_lost = !self.instance.is_alive();
                    self.reports.complete(call, Ok(outcome), &self.instance, is_lost).await;
                }
                () = idle_end.as_mut() => {
                    // File transfers and processes use the session without this task, and a call may be announced.
                    let remaining = self.idle_timeout.saturating_sub(self.state.unused_for());
                    if remaining.is_zero() && self.state.stop_if_idle(EndReason::IdleExpired) {
                        return None;
                    }
                    idle_end.as_mut().reset(Instant::now() + remaining.max(IDLE_RECHECK_INTERVAL));
                }
                // Last: a guest that floods these must not postpone the idle timeout.
                never = self.reports.network.collect() => match never {},
                never = capture_background(&mut kernel) => match never {},
            }
        }
    }

    fn has_reached_age(&self) -> bool {
        self.age_end.is_some_and(|end| end <= Instant::now())
    }

    /// Forgets an interpreter that has ended by itself: there will be no other event about it.
    fn handle_event(&mut self, event: Event, kernel: &mut Option<Kernel>) {
        // The next call starts another interpreter. If that fails too, the caller gets the error.
        self.starting.take_if(|starting| starting.is_ended_by(event));
        if kernel.take_if(|kernel| kernel.is_ended_by(event)).is_some() {
            self.reports.pending_notice = Some(INTERPRETER_DIED.into());
        }
    }

    async fn end_commands(&mut self) {
        if self.state.is_left() {
            self.instance.leave();
            self.commands.leave(&self.instance, &mut self.reports).await;
        } else {
            self.commands.end(&self.instance, &mut self.reports, self.state.is_ending()).await;
        }
    }

    async fn lost(mut self) -> LostInstance {
        self.end_commands().await;
        LostInstance { queues: self.queues, was_used: self.was_used }
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
            self.reports.pending_notice = Some(STATE_LOST.into());
        }
    }

    /// Runs code. Commands run beside it.
    async fn run_code(&mut self, call: Call, kernel: &mut Option<Kernel>) -> StateAfterCall {
        let age_end = self.age_end;
        let Self { instance, starting, reports, commands, queues, state, language, .. } = self;
        // Callers that wait for a session that is ending get "not found".
        let Some((open, work, deadline)) = reports.begin(call) else { return StateAfterCall::SandboxLost };
        let run = async {
            match (work, deadline) {
                (Work::Code(code), Some(deadline)) => {
                    Interpreter { instance, starting, language: *language }.execute(code, deadline, kernel).await
                }
                _ => (Ok(cancelled_in_queue()), StateAfterCall::Alive),
            }
        };
        tokio::pin!(run);
        let (result, state_after) = loop {
            let accepts_calls = age_end.is_none_or(|end| Instant::now() < end);
            // Not biased: code that prints without end must not block commands.
            tokio::select! {
                finished = &mut run => break finished,
                () = state.stopped() => {
                    if state.is_left() {
                        // The next server interrupts the call when it takes the session over.
                        instance.leave();
                        break (Ok(Outcome::new(Status::Cancelled)), StateAfterCall::SandboxLost);
                    }
                    // The call ends with its instance, and its result has the output until then.
                    instance.kill();
                    let finished = timeout_at(Instant::now() + STOPPED_CALL_TIMEOUT, &mut run).await;
                    let outcome = finished.ok().and_then(|(result, _)| result.ok());
                    let outcome = outcome.unwrap_or_else(|| Outcome::new(Status::Killed));
                    break (Ok(stopped(outcome)), StateAfterCall::SandboxLost);
                }
                Some(call) = queues.commands.recv(), if accepts_calls && commands.has_capacity() => {
                    commands.start(call, instance, reports).await;
                }
                Some((call, outcome)) = commands.next() => {
                    let is_lost = !instance.is_alive();
                    reports.complete(call, Ok(outcome), instance, is_lost).await;
                }
                never = reports.network.collect() => match never {},
            }
        };
        let is_lost = state_after == StateAfterCall::SandboxLost;
        reports.complete(open, result, instance, is_lost).await;
        state_after
    }
}

/// Captures the output of background tasks and processes while no code runs.
async fn capture_background(kernel: &mut Option<Kernel>) -> std::convert::Infallible {
    match kernel {
        Some(kernel) => kernel.capture_background().await,
        None => std::future::pending().await,
    }
}

/// The parts of a session that start its interpreter.
struct Interpreter<'a> {
    instance: &'a Instance,
    starting: &'a mut Option<Starting>,
    language: Language,
}

impl Interpreter<'_> {
    async fn start(&mut self) -> Result<Kernel, String> {
        match self.starting.take() {
            Some(starting) if starting.is_stored() => Ok(starting.without_waiting()),
            Some(starting) => starting.finish(self.instance).await,
            None => Kernel::start(self.instance, self.language).await,
        }
    }

    fn start_failure(&self, reason: &str) -> Failure {
        let message = format!("the {} interpreter could not be started: {reason}", self.language.interpreter());
        Failure::new(Kind::SandboxCreation, message).hint("`ringfence doctor` shows what this host has")
    }

    /// Runs code in the interpreter, and starts it first if there is none.
    async fn execute(
        mut self,
        code: Code,
        deadline: CallDeadline,
        kernel: &mut Option<Kernel>,
    ) -> (Result<Outcome, Failure>, StateAfterCall) {
        let mut running = match kernel.take() {
            Some(running) => running,
            None => match self.start().await {
                Ok(started) => started,
                Err(reason) => {
                    let is_lost = self.instance.kill_if_stuck().await;
                    let state_after =
                        if is_lost { StateAfterCall::SandboxLost } else { StateAfterCall::InterpreterEnded };
                    return (Err(self.start_failure(&reason)), state_after);
                }
            },
        };
        let (outcome, state_after) = running.execute(self.instance, code, deadline).await;
        if state_after == StateAfterCall::NeverReady {
            return (Err(self.start_failure(&outcome.notices.concat())), StateAfterCall::InterpreterEnded);
        }
        if state_after == StateAfterCall::Alive {
            *kernel = Some(running);
        }
        (Ok(outcome), state_after)
    }
}
