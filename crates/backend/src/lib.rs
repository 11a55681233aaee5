//! Where guests run: instances of sandboxes, and the API by which sessions and hosted servers use them.
//!
//! `native` makes instances with the sandbox crate, through a launcher process. Nothing above this crate knows the
//! sandbox crate.

mod instance;
pub mod interpreter;
mod kernel_socket;
mod meter;
pub mod native;
pub mod process_table;
mod processes;
pub mod protected_names;
mod streams;
mod supervisor_identity;

pub use instance::{Instance, Kept, Killer, Opening, Process, Witness};
pub use kernel_socket::KernelSocket;
pub use meter::{Meter, Usage, WorkspaceRequest};
pub use native::{LAUNCHER_ROLE, LauncherSockets, Launchers, ZYGOTE_LIBRARY, end_orphans};
pub use processes::{Managed, ProcessInfo, ProcessRequest, ProcessStatus, Processes, State};
pub use ringfence_sandbox::{
    Control, DirectoryEntry, Enforcement, Error, Event, ExitStatus, FileAccess, FileError, FileKind, GuestPath,
    NameChange, SignalTarget, WorkspaceUsage, ZygoteConfig, pipe,
};
pub use streams::{Input, LineTooLong, Lines, MOST_LINE_BYTES, Streams};
pub use supervisor_identity::{IDENTITY_VARIABLE, Identity};
