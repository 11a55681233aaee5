//! Linux isolation for ringfence: starts a [`Spec`](ringfence_core::Spec) as a running, supervised sandbox.
//!
//! The crate is synchronous and starts no threads. README.md has the map of the modules.
//!
//! A sandbox starts only with every protection that its spec requires; a protection may be missing only if the spec
//! accepts that. Dropping a sandbox's handle ends the sandbox and frees all of its resources.
//!
//! Not in this crate: policy, sessions, the egress proxy, asynchronous code.

mod capabilities;
pub mod cgroup;
mod control;
mod egress;
mod enforcement;
mod error;
#[cfg(fuzzing)]
pub mod fuzzing;
mod guest_path;
pub mod host;
mod init;
mod landlock;
mod launch;
pub mod launcher;
mod memory_watchdog;
mod mounts;
mod namespaces;
pub mod pipe;
mod protocol;
mod restrictions;
mod rlimits;
mod sandbox;
mod seccomp;
mod sys;
mod sysctls;
pub mod usage;
mod volumes;
mod zygote;

pub use control::{
    Control, EgressPortError, Event, ExitStatus, FileAccess, FileError, Listing, PendingWorkspaceUsage, WorkspaceUsage,
};
pub use enforcement::Enforcement;
pub use error::Error;
pub use guest_path::{GuestPath, PathError};
pub use launch::{Stdio, start};
pub use memory_watchdog::LimitBreach;
pub use namespaces::{IdMapping, SupplementaryGroups};
pub use protocol::{DirectoryEntry, FileKind, SignalTarget};
pub use rlimits::MAX_OPEN_FILES_WITH_SHARED_UID;
pub use sandbox::{Sandbox, Streams};
pub use sys::{SignalSet, TcpProgress, take_inherited_descriptor, tcp_progress};
pub use volumes::{Change, NameChange, VolumeWatch};
pub use zygote::ZygoteConfig;
