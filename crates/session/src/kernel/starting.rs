//! An interpreter from its start until it is ready.

use ringfence_backend::{Event, Instance, InterpreterProcess, PendingStore, SignalTarget};
use ringfence_core::Language;
use ringfence_guest::{precompiled, sources};
use rustix::process::Signal;
use tokio::time::timeout;

use super::{Kernel, START_TIMEOUT};
use crate::outputs::ProcessCapture;

/// An interpreter that was started and has not reported that it is ready.
pub(crate) struct Starting {
    kernel: Kernel,
    /// `None` if its streams are stored for the next server already.
    pending_store: Option<PendingStore>,
}

impl Starting {
    /// Drives an interpreter that was just started.
    pub(crate) fn new(language: Language, started: InterpreterProcess) -> Self {
        let InterpreterProcess { process, socket, is_forked, pending_store } = started;
        let mut starting = Self { kernel: Kernel::new(language, process, socket), pending_store };
        if !is_forked {
            starting.send_kernel_code();
        }
        starting
    }

    /// Starts the interpreter in an instance.
    pub(crate) fn begin(instance: &Instance, language: Language) -> Result<Self, String> {
        Ok(Self::new(language, instance.start_interpreter(sources::start_command(language))?))
    }

    /// Whether only the interpreter itself is still to be waited for.
    pub(crate) fn is_stored(&self) -> bool {
        self.pending_store.is_none()
    }

    /// Uses the interpreter before it is ready: a cell waits in its socket. Only if it [`Self::is_stored`].
    pub(crate) fn without_waiting(self) -> Kernel {
        self.kernel
    }

    /// Sends its kernel's code to an interpreter that was executed, if the code is not in a file.
    fn send_kernel_code(&mut self) {
        if self.kernel.language != Language::Python {
            return;
        }
        let frame = precompiled::python_start_frame();
        let sent = self.kernel.socket.try_send(&frame); // usually all of it
        self.kernel.unsent_kernel_code = frame[sent..].to_vec();
    }

    /// Whether the event says that the interpreter will never be ready.
    pub(crate) fn is_ended_by(&self, event: Event) -> bool {
        let own = self.kernel.process.number;
        matches!(event, Event::StartFailed { process, .. } | Event::Ended { process, .. } if process == own)
    }

    /// Waits until it is ready.
    pub(crate) async fn finish(self, instance: &Instance) -> Result<Kernel, String> {
        let Self { mut kernel, pending_store } = self;
        let mut capture = ProcessCapture::default();
        let ready = timeout(START_TIMEOUT, kernel.wait_until_ready(instance, &mut capture)).await;
        match ready {
            Ok(Ok(())) => {
                // Before the first cell, so that no acknowledged state is lost with this server. If the streams cannot
                // be stored, the session goes on without that protection.
                if let Some(pending) = pending_store
                    && let Err(error) = pending.confirm().await
                {
                    tracing::warn!("variables of a session will not survive the end of this server: {error}");
                }
                Ok(kernel)
            }
            failed => {
                instance.signal(kernel.process.number, Signal::KILL, SignalTarget::ProcessTree);
                capture.drain(&mut kernel.process);
                let stderr = capture.finish().stderr;
                let reason = match failed {
                    Ok(result) => result.err().unwrap_or_default(),
                    Err(_) => "the interpreter was not ready in time".to_owned(),
                };
                Err(format!("{reason} {}", String::from_utf8_lossy(&stderr.head).trim()).trim().to_owned())
            }
        }
    }
}
