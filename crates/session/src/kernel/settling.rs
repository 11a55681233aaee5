//! Finds an interpreter at rest: one that was another server's, or was interrupted.

use std::time::Duration;

use ringfence_backend::{Event, SignalTarget};
use rustix::process::Signal;
use tokio::task::yield_now;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::Kernel;
use crate::call::{Captured, Impatience, Patience};
use ringfence_backend::Instance;
use ringfence_core::Language;
use ringfence_guest::protocol;

/// Where an interpreter is found that was another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    AtRest,
    AfterInterrupt,
}

/// In which an interpreter that has nothing to do answers.
const AT_ONCE: Duration = Duration::from_millis(200);

impl Kernel {
    /// Interrupts what runs for a server that is gone, and finds the place where the stream makes sense again: that
    /// server may have died in the middle of a frame.
    pub(crate) async fn settle(&mut self, guest: &Instance) -> Result<(), String> {
        if !std::mem::take(&mut self.is_foreign) {
            return Ok(());
        }
        // What was printed for another is nobody's.
        let mut captured = Captured::default();
        match self.find_place(guest, &mut captured).await? {
            Place::AtRest => Ok(()),
            Place::AfterInterrupt => self.let_interrupts_pass(guest, &mut captured).await,
        }
    }

    async fn find_place(&mut self, guest: &Instance, captured: &mut Captured) -> Result<Place, String> {
        self.last_cell += 1;
        let request = protocol::encode_cell(self.spoken, self.last_cell, protocol::noop_code(self.spoken));
        let mut unsent = request.as_slice();
        // One that is idle answers at once and needs no interrupt.
        let mut patience = Patience::new(AT_ONCE, CancellationToken::new());
        loop {
            tokio::select! {
                biased;
                event = guest.event() => match event {
                    Event::Ended { process, .. } if process == self.process.number => return Err("it has ended".into()),
                    Event::Lost => return Err("the sandbox is gone".into()),
                    _ => {}
                },
                sent = self.line.send_some(unsent), if !unsent.is_empty() => {
                    unsent = &unsent[sent.map_err(|error| error.to_string())?..];
                }
                impatience = patience.lose() => match impatience {
                    Impatience::Interrupt(before) => self.interrupt(guest, before),
                    Impatience::Kill => {
                        guest.signal(self.process.number, Signal::KILL, SignalTarget::ProcessTree);
                        return Err("it did not answer".into());
                    }
                },
                received = self.line.receive(&mut self.inbox) => {
                    received.map_err(|error| error.to_string())?;
                    if protocol::skip_past_done(self.spoken, self.last_cell, &mut self.inbox)? {
                        captured.drain(&mut self.process);
                        return Ok(if patience.reason.is_some() { Place::AfterInterrupt } else { Place::AtRest });
                    }
                    // It may never fall silent: others have their turn in between.
                    yield_now().await;
                }
                () = captured.take(&mut self.process) => {}
            }
        }
    }

    /// Waits until no interrupt is on its way any more: one that comes late would strike the next cell, which may be
    /// somebody else's.
    pub(super) async fn let_interrupts_pass(
        &mut self,
        guest: &Instance,
        captured: &mut Captured,
    ) -> Result<(), String> {
        /// On a host so busy that an idle interpreter does not answer at once.
        const MOST_TRIES: u32 = 3;
        for _ in 0..MOST_TRIES {
            if guest.kill_if_stuck().await {
                return Err("the sandbox does not do what it is told".into());
            }
            if self.spoken != Language::Node || self.is_left_in_peace(guest, captured).await? {
                break;
            }
        }
        Ok(())
    }

    /// The threads of Node pass an interrupt on to each other, and on a busy host not at once. One that strikes here does
    /// no harm.
    async fn is_left_in_peace(&mut self, guest: &Instance, captured: &mut Captured) -> Result<bool, String> {
        const LOOKS: u32 = 4;
        const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
        for _ in 0..LOOKS {
            sleep(BETWEEN_LOOKS).await;
            if self.find_place(guest, captured).await? != Place::AtRest {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
