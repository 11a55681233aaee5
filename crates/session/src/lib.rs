//! Sessions: sandboxes that persist, with an interpreter that keeps its state from call to call.
//!
//! `sessions` finds and creates them, `session_task` is the task that owns one, `kernel` drives its interpreter and
//! `call` runs one call to its end. `prepare` creates their instances, and `pool` has a few ready.
//! A session belongs to the principal that created it. Sessions know nothing of HTTP or MCP.

mod adaptive_spin;
mod admission;
mod adoption;
mod api;
mod call;
mod capture;
mod events;
mod files;
mod full_output;
#[cfg(fuzzing)]
pub mod fuzzing;
mod health;
mod host_calls;
mod kernel;
mod limits;
mod log;
mod pool;
mod prepare;
mod process;
mod request_checks;
mod session_record;
mod session_state;
mod session_task;
mod sessions;
mod state;
mod usage;

pub use api::{
    Answer, Choice, CodeRequest, CommandRequest, Output, SessionInfo, SessionLimits, SessionStatus, SessionUsage,
    Status, Stopped,
};
pub use files::{Directory, FileContent, FileRange, FileWritten, MOST_ENTRIES, MOST_FILE_BYTES};
pub use full_output::{MOST_WHOLE_BYTES, Whole};
pub use host_calls::{Asked, CallNote, HostCall, HostCalls, MOST_OPEN_CALLS, Reply};
pub use log::LogEntry;
pub use process::{Attachment, Ending};
pub use ringfence_backend::{Input, LineTooLong, Lines, MOST_LINE_BYTES, ProcessInfo, ProcessRequest, ProcessStatus};
pub use ringfence_guest::{CellError, DisplayItem, HostResponse, JsonBytes, is_json};
pub use sessions::Sessions;
pub use state::{Change, EndReason, Impossible, State};
