//! Starts sandboxes on behalf of a process that has threads and so cannot do it itself, and outlives it.
//!
//! The launcher is a single-threaded process at the other end of a socket. It makes a sandbox for every request,
//! hands over the channel to its init, and keeps what must outlive every owner of that channel: the process to
//! reap, the cgroup, the placeholders, and the streams that others still write to.
//! It has one client at a time. When that ends without a farewell, another may take over through a socket in the
//! file system; if none does within the lease, the launcher ends its sandboxes and itself.

mod client;
mod sandboxes;
mod serve;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

pub use client::{Adopted, Launched, Launcher, AdoptOutcome};
pub use serve::serve;

use crate::enforcement::Enforcement;
use crate::zygote::ZygoteConfig;
use ringfence_core::{Command, Spec};

/// A way to a socket that is short enough for one, however deep it lies: through a descriptor of its directory.
fn short_path(path: &Path) -> io::Result<(OwnedFd, PathBuf)> {
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let directory = rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let short = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
    Ok((directory, short))
}

/// How a launcher works for its founder, and after it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LauncherConfig {
    /// Where a next client may reach it; without one it ends with its client.
    pub listen: Option<PathBuf>,
    /// How long it waits for one.
    pub lease: Duration,
    /// What to fork warm sandboxes from, if any.
    pub zygote: Option<ZygoteConfig>,
}

/// What launchers, and the inits of their sandboxes, are told. To be counted up with every change of it: a launcher of
/// another program is left to its lease.
const PROTOCOL: u32 = 4;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum Request {
    /// The founder's first words.
    Begin(LauncherConfig),
    /// The first words of one who takes over.
    Adopt { lease: Duration, protocol: u32 },
    /// Start warming up, if that has not begun.
    WarmUp,
    /// Make a sandbox without a command of its own, and start a process in it. Carries that one's descriptors, and
    /// then the streams of it that are kept for a next client.
    Launch { spec: Box<Spec>, warm: bool, first: Option<InitialProcess> },
    /// Keep the streams of a process, for a next client. Carries them.
    Keep { pid: i32, process: u32 },
    /// Keep the output of a command that has ended, which others still write to, for a next client. Carries it.
    KeepLeftover { pid: i32 },
    /// Hand a sandbox over to a new owner.
    Take { pid: i32 },
    /// Whether the one whose init has this process id was killed for its memory, where no cgroup does that.
    Examine { pid: i32 },
    /// A sandbox that could not be taken is to end. Without an answer.
    Discard { pid: i32 },
    /// End every sandbox, and yourself.
    End,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum Reply {
    Done,
    Warmth(ZygoteStatus),
    Adopted { sandboxes: Vec<i32> },
    Handed(Handed),
    Refused { message: String, hints: Vec<String> },
    Examined { is_breached: bool },
}

/// A process that a sandbox starts with, as soon as its walls stand: forked from the warm interpreter that the
/// sandbox was forked with, or executed where there is none.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitialProcess {
    pub process: u32,
    pub command: Command,
    pub environment: BTreeMap<String, String>,
}

impl InitialProcess {
    /// It gets descriptors 0 to 3, of which the last is its control channel.
    pub const DESCRIPTORS: usize = 4;
}

/// The standard output and standard error of a command that has ended, while what it has left running writes to them.
pub type BackgroundStreams = [OwnedFd; 2];

/// Of how many commands of a sandbox that is kept.
pub const MAX_BACKGROUND_STREAMS: usize = 8;

/// Whether sandboxes can be forked from a warm interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ZygoteStatus {
    Warm,
    WarmingUp,
    /// It could not be started, or there is none to start.
    Unavailable,
}

/// Carries the channel to the init and its pidfd; then the proxy's listener, the two files of the memory gauge, the
/// streams that were kept, and what was kept of commands that have ended, where there are such.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Handed {
    pid: i32,
    enforcement: Enforcement,
    is_warm: bool,
    has_listener: bool,
    has_gauge: bool,
    /// Commands of which something was kept.
    leftovers: usize,
    /// The process whose streams were kept, and how many.
    kept: Option<(u32, usize)>,
    /// How many owners it has had before.
    generation: u32,
}
