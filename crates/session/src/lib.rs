//! Sessions: persistent sandboxes with an interpreter whose state persists between calls.
//!
//! [`Sessions`] creates and finds sessions and implements every operation on them. A session belongs to the principal
//! that created it. This crate does not depend on HTTP or MCP, and uses only the backend-independent API of
//! `ringfence_backend`. README.md has the map of the modules.

mod admission;
mod api;
mod calls;
#[cfg(fuzzing)]
pub mod fuzzing;
mod host_calls;
mod instances;
mod kernel;
mod network;
mod outputs;
mod session;
mod sessions;
mod state;

pub use api::{
    CallResult, CodeRequest, CommandRequest, SessionInfo, SessionLimits, SessionOptions, SessionStatus, SessionUsage,
    Status, Stopped,
};
pub use host_calls::{CallNote, HostCall, HostCallEvent, HostCalls, MAX_OPEN_CALLS, Responder};
pub use network::QuestionSender;
pub use outputs::{DisplayId, FullOutput, MAX_FULL_OUTPUT_BYTES, Output, RetainedOutputs};
pub use ringfence_backend::{Input, LineTooLong, Lines, MAX_LINE_BYTES, ProcessInfo, ProcessRequest, ProcessStatus};
pub use ringfence_guest::{CellError, DisplayItem, HostResponse, JsonBytes, is_json};
pub use session::LogEntry;
pub use sessions::{
    Attachment, Directory, FileContent, FileRange, FileWritten, MAX_FILE_BYTES, MAX_LISTED_ENTRIES, ProcessEnd,
    Sessions,
};
pub use state::{Change, EndReason, InvalidChange, State};
