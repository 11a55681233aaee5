//! The task that owns a session: one call at a time, in the order they came, until it is stopped or expires.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ringfence_sandbox::Event;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::call::{Outcome, Patience, failed, run_command};
use super::guest::Guest;
use super::kernel::{Fate, Kernel};
use super::launch::Helper;
use super::{Failure, Kind, Status};
use crate::template::Template;

/// What is to be run.
pub(super) enum Work {
    Code(String),
    Command(String),
}

/// A call on its way to the session.
pub(super) struct Call {
    pub(super) work: Work,
    pub(super) timeout: Duration,
    pub(super) cancel: CancellationToken,
    pub(super) reply: oneshot::Sender<Result<Outcome, Failure>>,
}

/// What others may know of the session while it lives.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) busy: AtomicBool,
    last_used: AtomicU64,
}

impl Shared {
    pub(super) fn last_used(&self) -> u64 {
        self.last_used.load(Ordering::Relaxed)
    }

    fn unused_for(&self) -> Duration {
        Duration::from_secs(now().saturating_sub(self.last_used()))
    }

    pub(super) fn touch(&self) {
        self.last_used.store(now(), Ordering::Relaxed);
    }
}

/// Seconds since the epoch.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The session itself. When its task ends, so does its sandbox.
pub(super) struct Resident {
    pub(super) guest: Guest,
    pub(super) template: Template,
    pub(super) memory_limit: u64,
    pub(super) helper: Helper,
    pub(super) shared: Arc<Shared>,
    pub(super) calls: mpsc::Receiver<Call>,
    pub(super) stop: CancellationToken,
    pub(super) idle_timeout: Duration,
}

impl Resident {
    pub(super) async fn live(mut self) {
        let mut kernel = None;
        loop {
            // Files and processes are used without this task.
            let Some(left) = self.idle_timeout.checked_sub(self.shared.unused_for()).filter(|left| !left.is_zero())
            else {
                return;
            };
            let expiry = Instant::now() + left;
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = sleep_until(expiry) => {}
                event = self.guest.event() => {
                    if event == Event::Lost {
                        return;
                    }
                    // A kernel that died between calls is noticed by the next one.
                }
                call = self.calls.recv() => {
                    let Some(call) = call else { return };
                    self.shared.busy.store(true, Ordering::Relaxed);
                    let fate = self.answer(call, &mut kernel).await;
                    if fate == Fate::SandboxLost {
                        return;
                    }
                }
            }
        }
    }

    async fn answer(&mut self, call: Call, kernel: &mut Option<Kernel>) -> Fate {
        let Call { work, timeout, cancel, reply } = call;
        let stop = self.stop.clone();
        let kills_before = self.helper.examine(self.guest.pid()).await.memory_kills;
        let run = async {
            let patience = Patience::new(timeout, cancel);
            match work {
                Work::Command(line) => {
                    let outcome = run_command(&mut self.guest, &line, patience).await;
                    let fate = if outcome.status == Status::Killed { Fate::SandboxLost } else { Fate::Lives };
                    (Ok(outcome), fate)
                }
                Work::Code(code) => self.execute(&code, patience, kernel).await,
            }
        };
        let (mut answer, fate) = tokio::select! {
            answered = run => answered,
            () = stop.cancelled() => (Ok(failed("the session was stopped while the call ran".into())), Fate::SandboxLost),
        };
        if let Ok(outcome) = &mut answer
            && self.helper.examine(self.guest.pid()).await.memory_kills > kills_before
        {
            let limit = ringfence_sandbox::bytes::show(self.memory_limit);
            outcome.notices.push(format!("a process was killed: the session went over its memory limit of {limit}"));
        }
        // Before the answer, so that whoever has it also sees a session at rest.
        self.shared.touch();
        self.shared.busy.store(false, Ordering::Relaxed);
        // The caller may have gone away.
        let _ = reply.send(answer);
        fate
    }

    async fn execute(
        &mut self,
        code: &str,
        patience: Patience,
        kernel: &mut Option<Kernel>,
    ) -> (Result<Outcome, Failure>, Fate) {
        let mut live = match kernel.take() {
            Some(live) => live,
            None => match Kernel::start(&mut self.guest, self.template).await {
                Ok(started) => started,
                Err(why) => {
                    let message =
                        format!("the {} interpreter could not be started: {why}", self.template.interpreter());
                    let failure = Failure::new(Kind::SandboxCreation, message)
                        .suggest("`ringfence doctor` shows what this host has");
                    return (Err(failure), Fate::Died);
                }
            },
        };
        let (outcome, fate) = live.execute(&self.guest, code, patience).await;
        if fate == Fate::Lives {
            *kernel = Some(live);
        }
        (Ok(outcome), fate)
    }
}
