//! The requests of callers to sessions, and the results.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ringfence_core::SessionId;
use ringfence_guest::{CellError, DisplayItem};
use serde::Serialize;

use crate::host_calls::{CallNote, HostCalls};
use crate::network::QuestionSender;
use crate::outputs::{Output, RetainedOutputs};

/// Code to run in a session.
#[derive(Debug, Clone)]
pub struct CodeRequest {
    pub code: String,
    pub template: Option<String>,
    pub flavor: Option<String>,
    pub session_id: Option<SessionId>,
    pub timeout: Option<Duration>,
    /// Handles the host calls of the code. Without it, host calls are refused.
    pub host: Option<HostCalls>,
    /// Handles questions about hosts that no rule allows, while the code runs. Without it they are refused.
    pub questions: Option<QuestionSender>,
    /// Whether to return HTML that only repeats the text of a value, as that of tables. `sessions.rich_html` does so for
    /// all calls.
    pub rich_html: bool,
}

/// A shell command to run in a session.
#[derive(Debug, Clone)]
pub struct CommandRequest {
    pub command: String,
    pub template: Option<String>,
    pub flavor: Option<String>,
    pub session_id: Option<SessionId>,
    pub timeout: Option<Duration>,
    /// See [`CodeRequest::questions`].
    pub questions: Option<QuestionSender>,
}

/// The templates and flavors that callers may request and that this host can start.
#[derive(Debug, Clone, Default)]
pub struct SessionOptions {
    pub templates: Vec<String>,
    pub default_template: String,
    /// The languages of the templates, as text.
    pub languages: String,
    /// The packages of those templates that have any, as text.
    pub packages: String,
    pub flavors: Vec<String>,
    pub default_flavor: String,
    /// The network of sessions of the default template, as one short sentence.
    pub network: String,
}

/// The status of a call that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Ok,
    /// The code raised an error, or the exit code is not 0.
    Error,
    /// The call was interrupted at its timeout. The session retains its state.
    TimedOut,
    /// The call was interrupted because the caller cancelled it. The session retains its state.
    Cancelled,
    /// The interpreter or the sandbox ended or was killed. The state is lost.
    Killed,
}

impl Status {
    /// The status of a process that ended by itself.
    pub(crate) fn of_exit(code: Option<i32>) -> Self {
        if code.unwrap_or(0) == 0 { Self::Ok } else { Self::Error }
    }
}

/// The result of a call.
#[derive(Debug, Clone)]
pub struct CallResult {
    pub session_id: SessionId,
    pub session_created: bool,
    /// The number of calls in this session that the server has finished, this one included.
    pub number: u64,
    pub status: Status,
    pub exit_code: Option<i32>,
    pub stdout: Output,
    pub stderr: Output,
    /// The value of the last expression, as the language displays it.
    pub result: Option<String>,
    pub error: Option<CellError>,
    /// Whether the result or the error is incomplete.
    pub is_truncated: bool,
    pub display: Vec<DisplayItem>,
    pub duration: Duration,
    /// Additional information for the caller: state was lost, a limit was reached.
    pub notices: Vec<String>,
    /// Host calls that had no response when the code ended.
    pub open_calls: Vec<Arc<CallNote>>,
    /// Stores what is too long for a response, until the session ends.
    pub retained: Arc<RetainedOutputs>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionStatus {
    Idle,
    Busy,
}

/// The limits of a session's flavor, except for memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SessionLimits {
    pub cpus: f64,
    pub processes: u32,
    /// For each process.
    pub open_files: u32,
    pub workspace_bytes: u64,
    pub workspace_inodes: u64,
}

/// The usage of these limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SessionUsage {
    pub cpu_ms: u64,
    /// Processes and threads together, as for the limit.
    pub processes: u32,
    /// None if the sandbox did not respond in time.
    pub workspace_bytes: Option<u64>,
    pub workspace_inodes: Option<u64>,
}

/// A live session.
#[derive(Debug, Clone, Serialize)]
pub struct SessionInfo {
    pub session_id: SessionId,
    /// The owner of the session.
    pub principal: String,
    pub template: String,
    pub flavor: String,
    pub status: SessionStatus,
    /// Seconds since the epoch.
    pub created: u64,
    pub last_used: u64,
    pub expires: u64,
    /// The memory that its processes use.
    pub memory_bytes: Option<u64>,
    pub memory_limit_bytes: u64,
    pub limits: SessionLimits,
    /// None for a session that was just created or is ending.
    pub usage: Option<SessionUsage>,
    pub backend: &'static str,
    /// The mechanism that enforces each limit: `{"memory": "cgroup", …}`.
    pub enforced_by: BTreeMap<&'static str, &'static str>,
}

/// The result of stopping a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Stopped {
    /// Whether a call was running.
    pub was_running: bool,
}
