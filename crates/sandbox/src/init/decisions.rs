//! Decides about the calls that the seccomp filter leaves to the init.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use super::sockets::SocketLimit;
use super::watches::Watches;
use crate::sys::Listener;

/// The init's part of the filter.
pub(super) struct Decisions {
    listener: Listener,
    sockets: SocketLimit,
    watches: Watches,
}

impl Decisions {
    pub(super) fn new(listener: Listener, memory_bytes: u64) -> Self {
        Self { listener, sockets: SocketLimit::new(memory_bytes), watches: Watches::default() }
    }

    /// Decides about one call, once the listener is readable.
    pub(super) fn decide(&mut self) {
        // The caller may have been killed, or interrupted by a signal.
        let Ok(call) = self.listener.receive() else { return };
        match call.number {
            libc::SYS_socket => match self.sockets.check() {
                Ok(()) => self.listener.allow(&call),
                Err(errno) => self.listener.finish(&call, Err(errno)),
            },
            libc::SYS_inotify_add_watch => self.watches.add(&self.listener, &call),
            libc::SYS_inotify_init1 => self.watches.create(&self.listener, &call, lower(call.arguments[0])),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_inotify_init => self.watches.create(&self.listener, &call, 0),
            _ => self.listener.finish(&call, Err(Errno::NOSYS)),
        }
    }
}

impl AsFd for Decisions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// The half of a register that the kernel looks at.
pub(super) fn lower(argument: u64) -> u32 {
    u32::try_from(argument & u64::from(u32::MAX)).unwrap_or(0)
}
