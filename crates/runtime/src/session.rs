//! Sessions: sandboxes that stay, with an interpreter that keeps its state from call to call.
//!
//! `sessions` finds and makes them, `resident` is the task that owns one, `kernel` speaks with its interpreter and
//! `call` runs one call to its end. A session belongs to the principal that made it and ends with the server.

mod admission;
mod call;
mod capture;
mod events;
mod exchange;
mod failure;
mod guest;
mod id;
mod kernel;
mod language;
mod launch;
pub mod limits;
mod resident;
mod sessions;
mod settings;
mod shared;
mod state;

pub use exchange::{
    Answer, CellError, CodeRequest, CommandRequest, DisplayItem, Output, SessionInfo, SessionStatus, Status, Stopped,
};
pub use failure::{Failure, Kind};
pub use id::{Principal, SessionId};
pub use launch::LAUNCHER_ROLE;
pub use sessions::Sessions;
pub use settings::Settings;
pub use state::{Change, EndReason, Impossible, State};
