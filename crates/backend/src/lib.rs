//! Backends create instances and give the rest of the program one API for them. An instance is an isolated environment
//! in which guests, the untrusted processes, run.
//!
//! [`Backend`] creates, lists and adopts instances; [`Instance`] runs processes in one, signals them, reads its limits
//! and usage, and transfers files. Crates that depend on this one use only the items exported here, which are the same
//! for every backend. README.md has the map of the modules.

mod backend;
mod background_output;
mod command_ends;
mod config;
mod egress_ports;
mod error;
mod files;
mod instance;
pub mod interpreter;
mod kernel_socket;
mod limits;
mod monitor;
mod native;
mod process;
pub mod process_table;
mod processes;
pub mod protected_names;
mod streams;
mod supervisor_id;

pub use backend::{Adopted, Backend, Created, InstanceRequest, Orphan, Orphans};
pub use command_ends::CommandEnd;
pub use config::{BackendConfig, Persistence, WarmPython};
pub use egress_ports::EgressPorts;
pub use error::CreateError;
pub use files::InstanceFiles;
pub use instance::Instance;
pub use kernel_socket::KernelSocket;
pub use limits::{Enforcement, Meter, Usage, WorkspaceRequest};
pub use monitor::{EndWatch, KillHandle};
pub use native::{LAUNCHER_ROLE, end_orphans, run_launcher};
pub use process::{InterpreterProcess, PendingStore, PipedProcess, Process};
pub use processes::{ManagedProcess, ProcessInfo, ProcessRequest, ProcessState, ProcessStatus, Processes};
pub use ringfence_sandbox::{
    DirectoryEntry, EgressPortError, Event, ExitStatus, FileAccess, FileError, FileKind, GuestPath, Listing,
    NameChange, SignalTarget, WorkspaceUsage,
};
pub use streams::{Input, LineTooLong, Lines, MAX_LINE_BYTES, Streams};
pub use supervisor_id::{SUPERVISOR_ID_VARIABLE, SupervisorId};
