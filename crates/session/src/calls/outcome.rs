//! The result of a call inside the session, before it is a response to a principal.

use std::sync::Arc;
use std::time::Duration;

use ringfence_backend::ExitStatus;
use ringfence_egress::RefusedHosts;
use ringfence_guest::{CellError, DisplayItem};

use crate::api::Status;
use crate::host_calls::CallNote;
use crate::outputs::{CallOutput, Output};

/// The result of a call.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: Status,
    pub(crate) exit_code: Option<i32>,
    pub(crate) stdout: Output,
    pub(crate) stderr: Output,
    pub(crate) result: Option<String>,
    pub(crate) error: Option<CellError>,
    pub(crate) is_truncated: bool,
    pub(crate) display: Vec<DisplayItem>,
    pub(crate) notices: Vec<String>,
    pub(crate) open_calls: Vec<Arc<CallNote>>,
    /// The duration of the run, without waits for other calls and for the start of the session.
    pub(crate) duration: Duration,
    /// The hosts that were refused to the session while the call ran, or between the last call and this one.
    pub(crate) refused_hosts: RefusedHosts,
}

impl Outcome {
    pub(crate) fn new(status: Status) -> Self {
        Self {
            status,
            exit_code: None,
            stdout: Output::default(),
            stderr: Output::default(),
            result: None,
            error: None,
            is_truncated: false,
            display: Vec::new(),
            notices: Vec::new(),
            open_calls: Vec::new(),
            duration: Duration::ZERO,
            refused_hosts: RefusedHosts::default(),
        }
    }

    /// The result of a call that did not run, or not to its end.
    pub(crate) fn not_run(status: Status, notice: String) -> Self {
        Self { notices: vec![notice], ..Self::new(status) }
    }

    pub(crate) fn with_output(self, output: CallOutput) -> Self {
        Self { stdout: output.stdout, stderr: output.stderr, ..self }
    }
}

/// The state of the interpreter and the sandbox after a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateAfterCall {
    Alive,
    /// The interpreter ended or was killed. The sandbox is alive.
    InterpreterEnded,
    /// The interpreter ended before it was ready. The notice has the reason.
    NeverReady,
    /// The whole sandbox has ended.
    SandboxLost,
}

/// The exit code, as a shell reports it.
pub(crate) fn exit_code(status: ExitStatus) -> i32 {
    match status {
        ExitStatus::Exited(code) => code,
        ExitStatus::Killed(signal) => 128 + signal,
    }
}
