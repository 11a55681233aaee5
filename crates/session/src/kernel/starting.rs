//! An interpreter from its start until it is ready.

use std::collections::BTreeMap;

use ringfence_backend::{Event, SignalTarget};
use rustix::process::Signal;
use tokio::time::timeout;

use super::{Kernel, START_DEADLINE};
use crate::call::Captured;
use ringfence_backend::KernelSocket;
use ringfence_backend::{Instance, Kept, Opening};
use ringfence_core::Language;
use ringfence_guest::{precompiled, sources};

/// An interpreter that has been started and has not said yet that it is ready.
pub(crate) struct Starting {
    kernel: Kernel,
    /// None where the launcher has its streams already.
    kept: Option<Kept>,
}

impl Starting {
    /// One that is started with its sandbox, by the launcher.
    pub(crate) fn with_sandbox(
        spoken: Language,
        environment: BTreeMap<String, String>,
    ) -> std::io::Result<(Self, Opening)> {
        let (opening, process, line) = Opening::new(sources::start_command(spoken), environment)?;
        Ok((Self { kernel: Kernel::new(spoken, process, line), kept: None }, opening))
    }

    /// Whether nothing but the interpreter itself must be waited for.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.is_none()
    }

    /// The interpreter as it is: what it is asked now waits in its socket. Only if it [`Self::is_kept`].
    pub(crate) fn hurry(self) -> Kernel {
        self.kernel
    }

    /// Starts the interpreter, and leaves its streams with the launcher meanwhile.
    pub(crate) fn begin(guest: &mut Instance, spoken: Language) -> Result<Self, String> {
        let (line, theirs) = KernelSocket::new().map_err(|error| error.to_string())?;
        let (process, is_forked) = match guest.fork(&theirs) {
            Some(forked) => (forked?, true),
            None => (guest.spawn(sources::start_command(spoken), Some(&theirs))?, false),
        };
        // The kernel has it now; were it held here too, its end would never be seen.
        drop(theirs);
        let kept = guest.keep(&process, &line)?;
        let mut starting = Self { kernel: Kernel::new(spoken, process, line), kept: Some(kept) };
        if !is_forked {
            starting.teach();
        }
        Ok(starting)
    }

    /// Gives an interpreter that was executed its kernel, where that is not in a file.
    pub(crate) fn teach(&mut self) {
        if self.kernel.spoken != Language::Python {
            return;
        }
        let frame = precompiled::python_start_frame();
        let sent = self.kernel.line.send_at_once(&frame); // mostly all of it
        self.kernel.untaught = frame[sent..].to_vec();
    }

    /// Whether this says that it will never be ready.
    pub(crate) fn is_ended_by(&self, event: Event) -> bool {
        let own = self.kernel.process.number;
        matches!(event, Event::StartFailed { process, .. } | Event::Ended { process, .. } if process == own)
    }

    /// Waits until it is ready.
    pub(crate) async fn finish(self, guest: &Instance) -> Result<Kernel, String> {
        let Self { mut kernel, kept } = self;
        let mut captured = Captured::default();
        let ready = timeout(START_DEADLINE, kernel.await_ready(guest, &mut captured)).await;
        match ready {
            Ok(Ok(())) => {
                // Before anything runs in it: what has been answered should survive this server. Where the launcher is
                // no help, it is better that the session goes on.
                if let Some(kept) = kept
                    && let Err(why) = kept.confirm().await
                {
                    tracing::warn!("a session would lose its variables with this server: {why}");
                }
                Ok(kernel)
            }
            other => {
                guest.signal(kernel.process.number, Signal::KILL, SignalTarget::ProcessTree);
                captured.drain(&mut kernel.process);
                let (_, stderr) = captured.finish();
                let why = other
                    .map_or_else(|_| "it was not ready in time".to_owned(), |result| result.err().unwrap_or_default());
                Err(format!("{why} {}", String::from_utf8_lossy(&stderr.head).trim()).trim().to_owned())
            }
        }
    }
}
