//! The kernels that run code inside a session (`kernels/`: Python, JavaScript, bash) and the host's side of their wire
//! protocol.
//!
//! Everything that a kernel sends is untrusted: frames, displayed items and unusable messages are limited, and results
//! count only for the cell that runs. This crate does not start processes in sandboxes and does not read or write
//! sockets; `ringfence-session` does.

mod display;
mod host_call;
mod kernel_buffer;
pub mod precompiled;
pub mod protocol;
pub mod sources;

pub use display::{Display, DisplayItem, MAX_DISPLAY_ITEMS, is_json};
pub use host_call::{HostRequest, HostResponse, JsonBytes};
pub use kernel_buffer::KernelBuffer;
pub use protocol::{CellError, Done, Message};
