//! The queues of a session: code runs one piece after the other, and commands run beside it.

use std::time::Duration;

use ringfence_core::Failure;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::calls::{Code, Outcome};
use crate::network::QuestionSender;
use crate::state::UseGuard;

/// The code or command of a call.
pub(crate) enum Work {
    Code(Code),
    Command(String),
}

impl Work {
    /// Its kind and its text.
    pub(crate) fn describe(&self) -> (&'static str, &str) {
        match self {
            Self::Code(code) => ("code", &code.text),
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

/// Adds calls to the queues. Cheap to clone.
#[derive(Clone)]
pub(crate) struct CallSender {
    code: mpsc::Sender<Call>,
    commands: mpsc::Sender<Call>,
}

impl CallSender {
    pub(crate) fn try_send(&self, call: Call) -> Result<(), TrySendError<Call>> {
        match call.work {
            Work::Code(..) => self.code.try_send(call),
            Work::Command(_) => self.commands.try_send(call),
        }
    }
}

/// The calls that wait.
pub(crate) struct CallQueues {
    pub(super) code: mpsc::Receiver<Call>,
    pub(super) commands: mpsc::Receiver<Call>,
}

/// Creates two queues with this capacity each.
pub(crate) fn call_queues(capacity: usize) -> (CallSender, CallQueues) {
    let (code, code_queue) = mpsc::channel(capacity);
    let (commands, command_queue) = mpsc::channel(capacity);
    (CallSender { code, commands }, CallQueues { code: code_queue, commands: command_queue })
}
