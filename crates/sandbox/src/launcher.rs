//! The launcher: a single-threaded process that starts sandboxes for a process with threads, and outlives it.
//!
//! A sandbox can only be cloned from a process with one thread. The launcher is such a process, connected to its client
//! by a socket. It starts a sandbox for every request, passes the control channel to the client, and owns everything
//! that must survive the client: the init process, the cgroup, the placeholders, and streams to which processes of the
//! sandbox still write.
//!
//! A launcher has one client at a time, so a sandbox has one owner. If the client ends without an `End` request,
//! another client can adopt the launcher through a socket in the file system. If none does so before the lease expires,
//! the launcher ends all sandboxes and itself.

mod client;
mod protocol;
mod sandboxes;
mod server;
mod takeover_socket;
mod zygotes;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

pub use crate::launch::InitialProcess;
pub use client::{AdoptOutcome, Adopted, Launched, Launcher};
pub use protocol::{LauncherConfig, ZygoteStatus};
pub use server::serve;

/// The standard output and standard error of a command that has ended, while processes that it left running still write
/// to them.
pub type BackgroundStreams = [OwnedFd; 2];

/// Maximum number of ended commands of a sandbox whose [`BackgroundStreams`] are retained.
pub const MAX_BACKGROUND_STREAMS: usize = 8;

/// Returns a path to a socket that is short enough for `sockaddr_un`, through a descriptor of its directory. The path
/// is valid as long as the descriptor is open.
fn short_path(path: &Path) -> io::Result<(OwnedFd, PathBuf)> {
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let directory = rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let short = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
    Ok((directory, short))
}
