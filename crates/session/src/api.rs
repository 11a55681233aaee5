//! What a caller asks of sessions, and what it gets back.

use std::sync::Arc;
use std::time::Duration;

use ringfence_guest::{CellError, DisplayItem};
use serde::Serialize;

use super::Whole;
use super::host_calls::{CallNote, HostCalls};
use ringfence_core::SessionId;

/// Code to run in a session.
#[derive(Debug, Clone)]
pub struct CodeRequest {
    pub code: String,
    pub template: Option<String>,
    pub flavor: Option<String>,
    pub session_id: Option<SessionId>,
    pub timeout: Option<Duration>,
    /// Who answers what the code asks of the host; without one it can ask nothing.
    pub host: Option<HostCalls>,
}

/// One shell line to run in a session.
#[derive(Debug, Clone)]
pub struct CommandRequest {
    pub command: String,
    pub template: Option<String>,
    pub flavor: Option<String>,
    pub session_id: Option<SessionId>,
    pub timeout: Option<Duration>,
}

/// What a caller may ask for, in words.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    pub templates: String,
    pub flavors: String,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Ok,
    /// The code raised, or something ended with another exit code than 0.
    Error,
    /// It was interrupted after its time limit, or because the caller went away; the state is kept.
    TimedOut,
    Cancelled,
    /// The interpreter or the sandbox died or was killed; the state is lost.
    Killed,
}

impl Status {
    /// Of what has ended by itself.
    pub(crate) fn of_exit(code: Option<i32>) -> Self {
        if code.unwrap_or(0) == 0 { Self::Ok } else { Self::Error }
    }
}

/// What was printed to one stream: all of it, or its head and its tail.
#[derive(Debug, Clone, Default)]
pub struct Output {
    pub head: Vec<u8>,
    /// Empty unless something was dropped.
    pub tail: Vec<u8>,
    pub dropped_bytes: u64,
    /// Where the whole of it is kept, if something was dropped.
    pub whole: Option<Whole>,
}

/// What came of a call.
#[derive(Debug, Clone)]
pub struct Answer {
    pub session_id: SessionId,
    pub session_created: bool,
    /// How many the server has given in this session, this one included.
    pub number: u64,
    pub status: Status,
    pub exit_code: Option<i32>,
    pub stdout: Output,
    pub stderr: Output,
    /// The last expression's value, as the language shows it.
    pub result: Option<String>,
    pub error: Option<CellError>,
    /// The result or the error is not all of it.
    pub is_cut: bool,
    pub display: Vec<DisplayItem>,
    pub duration: Duration,
    /// What the caller should know besides: that state was lost, that a limit was met.
    pub notices: Vec<String>,
    /// What the code had asked of the host and not been answered when it ended.
    pub open_calls: Vec<Arc<CallNote>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionStatus {
    Idle,
    Busy,
}

/// What the flavor of a session allows, beside memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SessionLimits {
    pub cpus: f64,
    pub processes: u32,
    /// Of each process.
    pub open_files: u32,
    pub workspace_bytes: u64,
    pub workspace_inodes: u64,
}

/// What a session uses of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SessionUsage {
    pub cpu_ms: u64,
    /// Threads are counted too, as they are for the limit.
    pub processes: u32,
    /// None where the sandbox does not say.
    pub workspace_bytes: Option<u64>,
    pub workspace_inodes: Option<u64>,
}

/// A live session.
#[derive(Debug, Clone, Serialize)]
pub struct SessionInfo {
    pub session_id: SessionId,
    /// Whose it is.
    pub principal: String,
    pub template: String,
    pub flavor: String,
    pub status: SessionStatus,
    /// Seconds since the epoch.
    pub created: u64,
    pub last_used: u64,
    pub expires: u64,
    /// What its processes hold now.
    pub memory_bytes: Option<u64>,
    pub memory_limit_bytes: u64,
    pub limits: SessionLimits,
    /// None of one that has only been made, or is ending.
    pub usage: Option<SessionUsage>,
    pub backend: &'static str,
    /// By what each limit is kept: `{"memory": "cgroup", …}`.
    pub enforced_by: std::collections::BTreeMap<&'static str, &'static str>,
}

/// What came of stopping a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Stopped {
    /// Whether a call was under way in it.
    pub was_running: bool,
}
