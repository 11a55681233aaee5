//! What runs inside a session, and how the host talks to it: the kernels of Python, JavaScript and bash (`kernels/`),
//! their wire protocol, and the compilation of the Python kernel.
//!
//! Everything that a kernel sends is untrusted: frames are bounded, and only those of the running cell count.

pub mod compiled;
mod display;
mod host_call;
mod kernel_buffer;
pub mod language;
mod message;

pub use display::{Display, DisplayItem, MOST_ITEMS, is_json};
pub use host_call::{HostAnswer, Json, Request};
pub use kernel_buffer::KernelBuffer;
pub use message::{CellError, Done, Message};
