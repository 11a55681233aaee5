//! Linux isolation for ringfence: a spec in, a running, supervised sandbox out.
//!
//! Synchronous and without threads of its own. `spec` says what is wanted, `launch` makes it, `init` is
//! PID 1 inside, `mounts` and `walls` are the isolation, `Sandbox` is the host's handle.
//! Always holds: a sandbox either has every protection that its spec does not accept the lack of, or
//! does not start; dropping the handle ends it and frees everything.
//! Not here: policy, sessions, the egress proxy, anything asynchronous.

mod ceilings;
pub mod cgroup;
mod control;
mod enforcement;
mod error;
mod files;
mod frame;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod host;
mod identity;
mod in_flight;
mod init;
mod launch;
pub mod launcher;
mod mounts;
pub mod pipe;
mod protect;
mod sandbox;
mod seccomp;
mod sys;
pub mod usage;
mod view;
mod volume;
mod walls;
mod watchdog;
mod zygote;

pub use control::{Control, ExitStatus, Event, SignalTarget};
pub use enforcement::Enforcement;
pub use error::Error;
pub use files::{DirectoryEntry, FileAccess, FileError, FileKind, WorkspaceUsage, GuestPath, Listing, PendingWorkspaceUsage, PathError};
pub use identity::{IdMapping, SupplementaryGroups};
pub use in_flight::MAX_OPEN_FILES_WITH_SHARED_UID;
pub use launch::{Stdio, start};
pub use protect::{Change, NameChange, VolumeWatch};
pub use sandbox::{Sandbox, Streams};
pub use sys::{SignalSet, TcpProgress, take_inherited_descriptor, tcp_progress};
pub use watchdog::LimitBreach;
pub use zygote::ZygoteConfig;
