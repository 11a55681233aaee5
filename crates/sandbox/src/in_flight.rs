//! Descriptors in flight: sent through Unix sockets, and not yet received.
//!
//! The kernel counts them for each uid of the host, and refuses to send more (ETOOMANYREFS) to a process whose soft
//! `RLIMIT_NOFILE` is below that count (unix(7)). A guest that shares the uid of its user could therefore prevent
//! that user's other programs from passing descriptors. The guest's limit is low enough that this does not happen.

use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use crate::error::{Step, StepError};
use ringfence_core::Limits;

/// Open files of one process of a guest that shares its uid with the user who started it: half of the usual soft limit
/// of 1024. A guest can exceed it by one message, of 253 descriptors at most.
pub const MAX_OPEN_FILES_WITH_SHARED_UID: u32 = 512;

/// Datagrams that a Unix socket queues; only the sender's buffer limits them then.
const DATAGRAM_QUEUE: &str = "1048576";

/// The limit on open files of a guest's process.
pub(crate) fn open_files(limits: &Limits, uid_is_shared: bool) -> u64 {
    let most = if uid_is_shared { MAX_OPEN_FILES_WITH_SHARED_UID } else { u32::MAX };
    limits.open_files.min(most).into()
}

/// Prevents senders of datagrams from waiting for a full queue. Needs a /proc that is still writable.
///
/// From Linux 6.10 on a message is checked against the limit before that wait and counted after it, so any number of
/// waiting senders could exceed the limit together.
pub(crate) fn unblock_datagram_senders(proc: BorrowedFd<'_>) -> Result<(), StepError> {
    let path = "sys/net/unix/max_dgram_qlen";
    match openat(proc, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        // Older kernels show this setting to their first user namespace only, and count before the wait.
        Err(Errno::NOENT | Errno::ACCESS) => Ok(()),
        opened => {
            let file = opened.step(|| format!("raise {path}"))?;
            rustix::io::write(&file, DATAGRAM_QUEUE.as_bytes()).map(drop).step(|| format!("raise {path}"))
        }
    }
}
