//! Sessions: sandboxes that stay, with an interpreter that keeps its state from call to call.
//!
//! `sessions` finds and makes them, `resident` is the task that owns one, `kernel` speaks with its interpreter and
//! `call` runs one call to its end. `prepare` makes their sandboxes, through `launchers`, and `pool` keeps a few ready.
//! A session belongs to the principal that made it.

mod admission;
mod adoption;
mod attention;
mod call;
mod capture;
mod compiled;
mod display;
pub(crate) mod doors;
mod events;
mod exchange;
mod failure;
mod files;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
pub(crate) mod guest;
mod health;
mod host_calls;
mod id;
mod inbox;
mod kernel;
mod language;
pub(crate) mod launcher;
pub(crate) mod launchers;
mod leftovers;
pub mod limits;
mod line;
mod log;
mod message;
mod meter;
mod pool;
mod prepare;
mod process;
mod processes;
mod resident;
mod sessions;
mod settings;
mod shared;
mod state;
mod streams;
mod tenancy;
mod warmth;
mod whole;
mod wishes;

pub(crate) use adoption::end_orphans;
pub use display::is_json;
pub use exchange::{
    Answer, CellError, Choice, CodeRequest, CommandRequest, DisplayItem, Output, SessionInfo, SessionLimits,
    SessionStatus, SessionUsage, Status, Stopped,
};
pub use failure::{Failure, Kind};
pub use files::{Directory, FileContent, FileRange, FileWritten, MOST_ENTRIES, MOST_FILE_BYTES};
pub use host_calls::{Asked, CallNote, HostAnswer, HostCall, HostCalls, Json, MOST_OPEN_CALLS, Reply};
pub use id::{Principal, SessionId};
pub use launcher::LAUNCHER_ROLE;
pub use log::LogEntry;
pub use process::{Attachment, Ending, ProcessInfo, ProcessRequest, ProcessStatus};
pub use sessions::Sessions;
pub use settings::Settings;
pub use state::{Change, EndReason, Impossible, State};
pub use streams::{Input, LineTooLong, Lines, MOST_LINE_BYTES};
pub use warmth::ZYGOTE_LIBRARY;
pub use whole::{MOST_WHOLE_BYTES, Whole};
