//! The task that owns a session: one call at a time, in the order they came, until it is stopped or expires.

use std::sync::Arc;
use std::time::Duration;

use ringfence_backend::Event;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use super::Status;
use super::call::{Outcome, Patience, run_command};
use super::host_calls::HostCalls;
use super::kernel::{Fate, Kernel, Starting};
use super::state::{Change, EndReason};
use crate::session_state::{SessionState, Visit};
use ringfence_backend::Instance;
use ringfence_core::Language;
use ringfence_core::{Failure, Kind};

/// When a session whose time is up was in use at that moment.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// In which a call ends whose sandbox was killed.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Told to the caller after an interpreter has died.
pub(crate) const DIED: &str = "the interpreter died; its state is lost, files in /workspace are kept";

/// What is to be run.
pub(crate) enum Work {
    Code(String, Option<HostCalls>),
    Command(String),
}

impl Work {
    /// Of what kind it is, and its text.
    pub(crate) fn describe(&self) -> (&'static str, &str) {
        match self {
            Self::Code(code, _) => ("code", code),
            Self::Command(line) => ("command", line),
        }
    }
}

/// A call on its way to the session.
pub(crate) struct Call {
    pub(crate) work: Work,
    pub(crate) timeout: Duration,
    pub(crate) cancel: CancellationToken,
    pub(crate) visit: Visit,
    pub(crate) reply: oneshot::Sender<Result<Outcome, Failure>>,
}

/// The session itself. When its task ends, so does its sandbox.
pub(crate) struct SessionTask {
    pub(crate) guest: Instance,
    /// Where it runs already.
    pub(crate) kernel: Option<Kernel>,
    /// Where it has been started already.
    pub(crate) starting: Option<Starting>,
    pub(crate) language: Language,
    pub(crate) memory_limit: u64,
    pub(crate) shared: Arc<SessionState>,
    pub(crate) calls: mpsc::Receiver<Call>,
    pub(crate) idle_timeout: Duration,
    /// What is left of the time that it may live at all.
    pub(crate) most_age: Option<Duration>,
    /// What the next caller must be told.
    pub(crate) owed_notice: Option<String>,
    pub(crate) was_used: bool,
    /// Processes that had been killed for want of memory when that was last told.
    pub(crate) memory_kills: u64,
}

/// What is left of a session whose sandbox is gone.
pub(crate) struct Lost {
    pub(crate) calls: mpsc::Receiver<Call>,
    /// A sandbox that is lost before its first call would be lost again.
    pub(crate) was_used: bool,
}

impl SessionTask {
    /// Lives until there is a reason to end, which is then in the shared state, or until the sandbox is lost.
    pub(crate) async fn live(mut self) -> Option<Lost> {
        // A timer that is set to now runs out later.
        if self.most_age.is_some_and(|left| left.is_zero()) {
            self.shared.end(EndReason::AgeExpired);
            return None;
        }
        let mut kernel = self.kernel.take();
        self.take_over(&mut kernel).await;
        // Not made anew for each call: what is done in the session only puts its idle end off.
        let idle_end = sleep(self.idle_timeout.saturating_sub(self.shared.unused_for()));
        let age_end = sleep(self.most_age.unwrap_or_default());
        tokio::pin!(idle_end, age_end);
        loop {
            tokio::select! {
                biased;
                () = self.shared.stopped() => return None,
                () = age_end.as_mut(), if self.most_age.is_some() => {
                    self.shared.end(EndReason::AgeExpired);
                    return None;
                }
                call = self.calls.recv() => {
                    let Some(call) = call else {
                        self.shared.end(EndReason::Stopped);
                        return None;
                    };
                    // Whoever waits for an answer of a session that ends is told that it is gone.
                    if self.shared.change(Change::CallStarted).is_err() {
                        return None;
                    }
                    self.was_used = true;
                    let fate = self.answer(call, &mut kernel).await;
                    if fate == Fate::SandboxLost {
                        return Some(self.lost());
                    }
                }
                event = self.guest.event() => {
                    if event == Event::Lost {
                        return Some(self.lost());
                    }
                    self.hear(event, &mut kernel);
                }
                () = idle_end.as_mut() => {
                    // Something may have been done meanwhile, by files and processes without this task too, or a call
                    // may be on its way.
                    let left = self.idle_timeout.saturating_sub(self.shared.unused_for());
                    if left.is_zero() && self.shared.retire_if_idle(EndReason::IdleExpired) {
                        return None;
                    }
                    idle_end.as_mut().reset(Instant::now() + left.max(LOOK_AGAIN));
                }
            }
        }
    }

    /// Takes note of an interpreter that has ended by itself: nobody will hear of it again.
    fn hear(&mut self, event: Event, kernel: &mut Option<Kernel>) {
        // One that cannot be started is started again by the call that needs it, which is told why.
        self.starting.take_if(|starting| starting.is_ended_by(event));
        // The next call gets another, and is told.
        if kernel.take_if(|kernel| kernel.is_ended_by(event)).is_some() {
            self.owed_notice = Some(DIED.into());
        }
    }

    fn lost(self) -> Lost {
        Lost { calls: self.calls, was_used: self.was_used }
    }

    /// Makes an interpreter that was another server's answer to this one.
    async fn take_over(&mut self, kernel: &mut Option<Kernel>) {
        let Some(foreign) = kernel else { return };
        let settled = tokio::select! {
            settled = foreign.settle(&self.guest) => settled,
            () = self.shared.stopped() => return,
        };
        if let Err(why) = settled {
            tracing::warn!("an interpreter could not be taken over: {why}");
            *kernel = None;
            self.owed_notice =
                Some("the server was restarted and the interpreter's state is lost; files are kept".into());
        }
    }

    async fn answer(&mut self, call: Call, kernel: &mut Option<Kernel>) -> Fate {
        let Call { work, timeout, cancel, visit, reply } = call;
        let (shared, killer) = (Arc::clone(&self.shared), self.guest.killer());
        let run = async {
            if cancel.is_cancelled() {
                let why = "it was cancelled before its turn came, and has not run";
                return (Ok(Outcome::not_run(Status::Cancelled, why.into())), Fate::Lives);
            }
            let patience = Patience::new(timeout, cancel);
            match work {
                Work::Command(line) => {
                    let mut others = Vec::new();
                    let (outcome, fate) = run_command(&mut self.guest, &line, patience, &mut others).await;
                    for event in others {
                        self.hear(event, kernel);
                    }
                    (Ok(outcome), fate)
                }
                Work::Code(code, host) => self.execute(&code, host, patience, kernel).await,
            }
        };
        let (mut answer, fate) = {
            tokio::pin!(run);
            tokio::select! {
                answered = &mut run => answered,
                () = shared.stopped() => {
                    // The call ends with its sandbox, and tells what was printed until then.
                    killer.kill();
                    let answered = timeout_at(Instant::now() + LAST_WORDS, run).await;
                    let outcome = answered.ok().and_then(|(answer, _)| answer.ok());
                    let outcome = outcome.unwrap_or_else(|| Outcome::new(Status::Killed));
                    let why = "the session was stopped while the call ran";
                    (Ok(Outcome { status: Status::Killed, notices: vec![why.into()], ..outcome }), Fate::SandboxLost)
                }
            }
        };
        let kills = self.guest.memory_kills();
        if let Ok(outcome) = &mut answer
            && (kills > std::mem::replace(&mut self.memory_kills, kills)
                || (fate == Fate::SandboxLost && self.guest.is_breached().await))
        {
            let limit = ringfence_core::bytes::format(self.memory_limit);
            outcome.notices.push(format!("a process was killed: the session went over its memory limit of {limit}"));
        }
        if let Ok(outcome) = &mut answer {
            outcome.notices.extend(self.owed_notice.take());
        }
        // Before the answer, so that whoever has it also sees a session at rest.
        self.shared.touch();
        let _ = self.shared.change(Change::CallFinished);
        drop(visit);
        // The caller may have gone away.
        let _ = reply.send(answer);
        fate
    }

    async fn start_kernel(&mut self) -> Result<Kernel, String> {
        match self.starting.take() {
            Some(starting) if starting.is_kept() => Ok(starting.hurry()),
            Some(starting) => starting.finish(&self.guest).await,
            None => Kernel::start(&mut self.guest, self.language).await,
        }
    }

    fn not_started(&self, why: &str) -> Failure {
        let message = format!("the {} interpreter could not be started: {why}", self.language.interpreter());
        Failure::new(Kind::SandboxCreation, message).hint("`ringfence doctor` shows what this host has")
    }

    async fn execute(
        &mut self,
        code: &str,
        host: Option<HostCalls>,
        patience: Patience,
        kernel: &mut Option<Kernel>,
    ) -> (Result<Outcome, Failure>, Fate) {
        let mut live = match kernel.take() {
            Some(live) => live,
            None => match self.start_kernel().await {
                Ok(started) => started,
                Err(why) => {
                    let is_lost = self.guest.kill_if_stuck().await;
                    return (Err(self.not_started(&why)), if is_lost { Fate::SandboxLost } else { Fate::Died });
                }
            },
        };
        let (outcome, fate) = live.execute(&self.guest, code, host, patience).await;
        if fate == Fate::NeverReady {
            return (Err(self.not_started(&outcome.notices.concat())), Fate::Died);
        }
        if fate == Fate::Lives {
            *kernel = Some(live);
        }
        (Ok(outcome), fate)
    }
}
