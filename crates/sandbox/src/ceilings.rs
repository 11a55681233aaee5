//! Ceilings of the kernel that hold for one user or network namespace, lowered for the sandbox's own.
//!
//! They are charged to the user who started the sandbox as well, so a guest that could exhaust them would
//! starve that user's other programs.

use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags, openat};

use crate::enforcement::Enforcement;
use crate::error::{Step, StepError};

/// A second wall behind seccomp, and room for file watchers without taking all that the user has (the
/// kernel's default is 128 instances a user).
const ALWAYS: [(&str, &str); 3] = [
    ("sys/user/max_user_namespaces", "0"),
    ("sys/user/max_inotify_instances", "32"),
    ("sys/user/max_inotify_watches", "16384"),
];

/// Least, initial and largest buffer of a TCP socket, in each direction. Where no cgroup counts them, the
/// watchdog counts sockets, and this makes the count mean something.
const WITHOUT_MEMORY_CGROUP: [(&str, &str); 2] =
    [("sys/net/ipv4/tcp_rmem", "4096 65536 131072"), ("sys/net/ipv4/tcp_wmem", "4096 16384 131072")];

/// Lowers them through a /proc that can still be written.
pub(crate) fn lower(proc: BorrowedFd<'_>, enforcement: Enforcement) -> Result<(), StepError> {
    let sockets = WITHOUT_MEMORY_CGROUP.iter().filter(|_| !enforcement.memory_by_cgroup);
    for (path, value) in ALWAYS.iter().chain(sockets) {
        match openat(proc, *path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
            // What the kernel was built without cannot be used up.
            Err(rustix::io::Errno::NOENT) => {}
            opened => {
                let file = opened.step(|| format!("lower {path}"))?;
                rustix::io::write(&file, value.as_bytes()).step(|| format!("lower {path}"))?;
            }
        }
    }
    Ok(())
}
