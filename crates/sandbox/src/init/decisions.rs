//! Decides about the calls that the seccomp filter leaves to the init.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::io::Errno;

use super::sockets::SocketLimit;
use super::watches::Watches;
use crate::sys::{Listener, PendingCall};

/// The kernel frees a closed netlink socket with a delay, so a call over the limit waits this long for a free one.
const WAIT_FOR_CLOSED: Duration = Duration::from_millis(250);
const CHECK_AGAIN_AFTER: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// The decisions of the init about calls that the filter leaves to it.
pub(super) struct Decisions {
    listener: Listener,
    sockets: SocketLimit,
    watches: Watches,
    /// Calls over the limit of sockets, with their deadlines; at most one per thread of the sandbox.
    waiting: VecDeque<(PendingCall, Instant)>,
}

impl Decisions {
    pub(super) fn new(listener: Listener, memory_bytes: u64) -> Self {
        Self {
            listener,
            sockets: SocketLimit::new(memory_bytes),
            watches: Watches::default(),
            waiting: VecDeque::new(),
        }
    }

    /// Decides about one call, once the listener is readable.
    pub(super) fn decide(&mut self) {
        // The caller may have been killed, or interrupted by a signal.
        let Ok(call) = self.listener.receive() else { return };
        match call.number {
            libc::SYS_socket if self.waiting.is_empty() && self.sockets.has_room() => self.listener.allow(&call),
            libc::SYS_socket => self.waiting.push_back((call, Instant::now() + WAIT_FOR_CLOSED)),
            libc::SYS_inotify_add_watch => self.watches.add(&self.listener, &call),
            libc::SYS_inotify_init1 => self.watches.create(&self.listener, &call, lower(call.arguments[0])),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_inotify_init => self.watches.create(&self.listener, &call, 0),
            _ => self.listener.finish(&call, Err(Errno::NOSYS)),
        }
    }

    /// Decides about calls that wait, as far as possible.
    pub(super) fn decide_waiting(&mut self) {
        while let Some((call, deadline)) = self.waiting.front() {
            if self.listener.is_pending(call) {
                if self.sockets.has_room() {
                    self.listener.allow(call);
                } else if Instant::now() >= *deadline {
                    self.listener.finish(call, Err(Errno::NOBUFS));
                } else {
                    return;
                }
            }
            self.waiting.pop_front();
        }
    }

    /// The time of the next check of waiting calls; `None` if there are none.
    pub(super) fn check_again_after(&self) -> Option<Timespec> {
        (!self.waiting.is_empty()).then_some(CHECK_AGAIN_AFTER)
    }
}

impl AsFd for Decisions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// The half of a register that the kernel uses.
pub(super) fn lower(argument: u64) -> u32 {
    u32::try_from(argument & u64::from(u32::MAX)).unwrap_or(0)
}
