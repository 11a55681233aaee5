//! One call in a session: its result, its deadline, and how a shell command runs. The kernel runs code.

mod command;
mod deadline;
mod outcome;

pub(crate) use command::run_command;
pub(crate) use deadline::{CallDeadline, DeadlineStep, EarlyEnd};
pub(crate) use outcome::{Outcome, StateAfterCall, exit_code};

use std::time::Duration;

use crate::host_calls::HostCalls;

/// The code of a call.
pub(crate) struct Code {
    pub(crate) text: String,
    pub(crate) host: Option<HostCalls>,
    /// Whether it may display HTML copies of values that have a text too.
    pub(crate) rich_html: bool,
}

/// Maximum time to wait for the end of a process that was killed.
pub(crate) const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// The notice after the loss of the whole sandbox.
pub(crate) const SANDBOX_KILLED: &str = "the sandbox was killed; variables and files of the session are lost";
