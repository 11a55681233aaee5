//! Brings an interpreter to a known state: idle, with no interrupt on its way, and the start of a frame next in its
//! stream. Needed after an adoption and after interrupts.

use std::time::Duration;

use ringfence_backend::{Event, Instance, SignalTarget};
use ringfence_core::Language;
use ringfence_guest::protocol;
use rustix::process::Signal;
use tokio::task::yield_now;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::Kernel;
use crate::calls::{CallDeadline, DeadlineStep};
use crate::outputs::ProcessCapture;

/// Whether an interpreter had to be interrupted before it responded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Probe {
    WasIdle,
    WasInterrupted,
}

/// The time in which an idle interpreter responds.
const IDLE_RESPONSE_TIMEOUT: Duration = Duration::from_millis(200);

impl Kernel {
    /// Interrupts the cell of a previous server, which may have died in the middle of a frame, and discards its output.
    /// Has no effect on an interpreter that was not adopted.
    pub(crate) async fn resynchronize(&mut self, instance: &Instance) -> Result<(), String> {
        if !std::mem::take(&mut self.is_adopted) {
            return Ok(());
        }
        let mut capture = ProcessCapture::default();
        match self.probe(instance, &mut capture).await? {
            Probe::WasIdle => Ok(()),
            Probe::WasInterrupted => self.wait_for_late_interrupts(instance, &mut capture).await,
        }
    }

    /// Runs an empty cell, and skips all input up to its result. Interrupts the interpreter if it does not respond.
    async fn probe(&mut self, instance: &Instance, capture: &mut ProcessCapture) -> Result<Probe, String> {
        self.last_cell += 1;
        let request = protocol::encode_cell(self.language, self.last_cell, protocol::noop_code(self.language));
        let mut unsent = request.as_slice();
        let mut deadline = CallDeadline::new(IDLE_RESPONSE_TIMEOUT, CancellationToken::new());
        loop {
            tokio::select! {
                biased;
                event = instance.event() => match event {
                    Event::Ended { process, .. } if process == self.process.number => {
                        return Err("the interpreter has ended".into());
                    }
                    Event::Lost => return Err("the sandbox has ended".into()),
                    _ => {}
                },
                sent = self.socket.send_some(unsent), if !unsent.is_empty() => {
                    unsent = &unsent[sent.map_err(|error| error.to_string())?..];
                }
                step = deadline.next_step() => match step {
                    DeadlineStep::Interrupt(previous) => self.interrupt(instance, previous),
                    DeadlineStep::Kill => {
                        instance.signal(self.process.number, Signal::KILL, SignalTarget::ProcessTree);
                        return Err("the interpreter did not respond".into());
                    }
                },
                received = self.socket.receive(&mut self.inbox) => {
                    received.map_err(|error| error.to_string())?;
                    if protocol::skip_past_done(self.language, self.last_cell, &mut self.inbox)? {
                        capture.drain(&mut self.process);
                        return Ok(if deadline.reason.is_some() { Probe::WasInterrupted } else { Probe::WasIdle });
                    }
                    // An interpreter may send without end: other tasks run in between.
                    yield_now().await;
                }
                () = capture.read(&mut self.process) => {}
            }
        }
    }

    /// Waits until no interrupt is on its way: a late one would hit the next cell, which may be another caller's.
    pub(super) async fn wait_for_late_interrupts(
        &mut self,
        instance: &Instance,
        capture: &mut ProcessCapture,
    ) -> Result<(), String> {
        /// More than one attempt is needed if the host is so busy that an idle interpreter does not respond in time.
        const MAX_ATTEMPTS: u32 = 3;
        for _ in 0..MAX_ATTEMPTS {
            if instance.kill_if_stuck().await {
                return Err("the sandbox does not handle requests".into());
            }
            if self.language != Language::Node || self.stays_idle(instance, capture).await? {
                break;
            }
        }
        Ok(())
    }

    /// Probes the interpreter for a while. The threads of Node pass an interrupt on to each other, on a busy host with a
    /// delay. An interrupt that arrives during a probe does no harm.
    async fn stays_idle(&mut self, instance: &Instance, capture: &mut ProcessCapture) -> Result<bool, String> {
        const PROBES: u32 = 4;
        const PROBE_INTERVAL: Duration = Duration::from_millis(50);
        for _ in 0..PROBES {
            sleep(PROBE_INTERVAL).await;
            if self.probe(instance, capture).await? != Probe::WasIdle {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
