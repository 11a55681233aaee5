//! Ceilings of the kernel that hold for one user or network namespace, lowered for the sandbox's own.
//!
//! They are charged to the user who started the sandbox as well, so a guest that could exhaust them would
//! starve that user's other programs.

use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags, openat};

use crate::error::{Step, StepError};

/// Each with what is written to it.
const CEILINGS: [(&str, &str); 5] = [
    // A second wall behind seccomp.
    ("sys/user/max_user_namespaces", "0"),
    // Room for file watchers without taking all that the user has (128 instances by the kernel's default).
    ("sys/user/max_inotify_instances", "32"),
    ("sys/user/max_inotify_watches", "16384"),
    // Least, initial and largest buffer of a TCP socket, in each direction. All traffic is loopback, which needs
    // no more; cgroup v1 hardly counts these buffers, and where there is no cgroup the watchdog counts sockets.
    ("sys/net/ipv4/tcp_rmem", "4096 65536 131072"),
    ("sys/net/ipv4/tcp_wmem", "4096 16384 131072"),
];

/// Lowers them through a /proc that can still be written.
pub(crate) fn lower(proc: BorrowedFd<'_>) -> Result<(), StepError> {
    for (path, value) in CEILINGS {
        match openat(proc, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
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
