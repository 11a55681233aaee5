//! Kernel settings of the sandbox's user and network namespaces, written through its /proc while that is writable.
//!
//! The lowered limits also count for the user who started the sandbox, so without them a guest could use up what the
//! user's other programs need.

use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use crate::error::{SetupError, SetupStep};

/// The settings and their values.
const LIMITS: [(&str, &str); 5] = [
    // Seccomp refuses new user namespaces already; this is a second protection.
    ("sys/user/max_user_namespaces", "0"),
    // Enough for file watchers, and a part of what the user has (the kernel's default is 128 instances).
    ("sys/user/max_inotify_instances", "32"),
    ("sys/user/max_inotify_watches", "16384"),
    // Minimum, initial and maximum buffer size of a TCP socket, in each direction. All traffic is loopback, which needs
    // no larger buffers. Cgroup v1 hardly counts these buffers, and without a cgroup the watchdog counts sockets.
    ("sys/net/ipv4/tcp_rmem", "4096 65536 131072"),
    ("sys/net/ipv4/tcp_wmem", "4096 16384 131072"),
];

/// Maximum number of datagrams in the queue of a Unix socket: so large that only the sender's buffer limits them.
const DATAGRAM_QUEUE_LENGTH: (&str, &str) = ("sys/net/unix/max_dgram_qlen", "1048576");

/// With egress, the init opens listeners for low ports after it has dropped its capabilities. The ports belong to the
/// sandbox's network namespace, so the guest may have the others.
const UNPRIVILEGED_PORT_START: (&str, &str) = ("sys/net/ipv4/ip_unprivileged_port_start", "0");

/// Lowers the limits.
pub(crate) fn lower_limits(proc: BorrowedFd<'_>) -> Result<(), SetupError> {
    for (path, value) in LIMITS {
        match openat(proc, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
            // The kernel was built without this resource, so it needs no limit.
            Err(Errno::NOENT) => {}
            opened => {
                let file = opened.step(|| format!("lower {path}"))?;
                rustix::io::write(&file, value.as_bytes()).step(|| format!("lower {path}"))?;
            }
        }
    }
    Ok(())
}

/// Allows processes without capabilities to listen on all ports.
pub(crate) fn allow_low_ports(proc: BorrowedFd<'_>) -> Result<(), SetupError> {
    let (path, value) = UNPRIVILEGED_PORT_START;
    let describe = || format!("change {path}");
    let file = openat(proc, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).step(describe)?;
    rustix::io::write(&file, value.as_bytes()).map(drop).step(describe)
}

/// Prevents senders of datagrams from blocking on a full queue.
///
/// Since Linux 6.10 a message is checked against the limit of descriptors in flight before the sender blocks, and
/// counted afterwards, so any number of blocked senders could exceed the limit together.
pub(crate) fn unblock_datagram_senders(proc: BorrowedFd<'_>) -> Result<(), SetupError> {
    let (path, value) = DATAGRAM_QUEUE_LENGTH;
    match openat(proc, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        // Older kernels have this setting in the initial user namespace only, and count before the sender blocks.
        Err(Errno::NOENT | Errno::ACCESS) => Ok(()),
        opened => {
            let file = opened.step(|| format!("raise {path}"))?;
            rustix::io::write(&file, value.as_bytes()).map(drop).step(|| format!("raise {path}"))
        }
    }
}
