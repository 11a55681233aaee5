//! Frames between the host and the init of a sandbox.
//!
//! Frames outlive program versions: a server may talk to an init that an older server's launcher started. Field and
//! variant names on the wire never change; renamed Rust items keep their wire name with `serde(rename)`. Any other
//! change of a frame needs a new `launcher::PROTOCOL` number.
//!
//! The host does not trust the init: unknown fields are refused, and receivers accept only the descriptors that a frame
//! should carry.
//!
//! The frames of the launcher and of the zygote are in `launcher/protocol.rs` and `zygote/protocol.rs`.

mod channel;
mod egress_ports;
mod files;
mod init;

pub(crate) use channel::{Channel, MAX_DESCRIPTORS};
pub(crate) use egress_ports::ListenReport;
pub use files::{DirectoryEntry, FileKind};
pub(crate) use files::{FileAction, FileReport};
pub use init::SignalTarget;
pub(crate) use init::{InitReport, InitRequest, MAIN_PROCESS, errno_from_wire};
