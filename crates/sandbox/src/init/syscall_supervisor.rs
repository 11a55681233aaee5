//! Responds to the system calls that the seccomp filter passes to the init: sockets without memory accounting, and
//! inotify.

mod inotify;
mod socket_limit;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::io::Errno;

use crate::sys::{NotificationListener, NotifiedCall};
use inotify::InotifyInstances;
use socket_limit::SocketLimit;

/// Maximum delay of a `socket` call over the limit: the kernel frees a closed netlink socket with a delay.
const SOCKET_TIMEOUT: Duration = Duration::from_millis(250);

const RETRY_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

pub(super) struct SyscallSupervisor {
    listener: NotificationListener,
    sockets: SocketLimit,
    inotify: InotifyInstances,
    /// `socket` calls over the limit, with their deadlines; at most one per thread of the sandbox.
    waiting: VecDeque<(NotifiedCall, Instant)>,
}

impl SyscallSupervisor {
    pub(super) fn new(listener: NotificationListener, memory_bytes: u64) -> Self {
        Self {
            listener,
            sockets: SocketLimit::new(memory_bytes),
            inotify: InotifyInstances::default(),
            waiting: VecDeque::new(),
        }
    }

    /// Handles one call. Call this when the listener is readable.
    pub(super) fn handle_call(&mut self) {
        // Fails if the calling thread was killed, or interrupted by a signal.
        let Ok(call) = self.listener.receive() else { return };
        match call.number {
            libc::SYS_socket if self.waiting.is_empty() && self.sockets.is_below_limit() => self.listener.allow(&call),
            libc::SYS_socket => self.waiting.push_back((call, Instant::now() + SOCKET_TIMEOUT)),
            libc::SYS_inotify_add_watch => self.inotify.add_watch(&self.listener, &call),
            libc::SYS_inotify_init1 => self.inotify.create(&self.listener, &call, lower_half(call.arguments[0])),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_inotify_init => self.inotify.create(&self.listener, &call, 0),
            _ => self.listener.respond(&call, Err(Errno::NOSYS)),
        }
    }

    /// Responds to waiting calls that are below the limit now, or have timed out.
    pub(super) fn retry_waiting(&mut self) {
        while let Some((call, deadline)) = self.waiting.front() {
            if self.listener.is_pending(call) {
                if self.sockets.is_below_limit() {
                    self.listener.allow(call);
                } else if Instant::now() >= *deadline {
                    self.listener.respond(call, Err(Errno::NOBUFS));
                } else {
                    return;
                }
            }
            self.waiting.pop_front();
        }
    }

    /// The time after which [`Self::retry_waiting`] must be called; `None` if no calls wait.
    pub(super) fn retry_interval(&self) -> Option<Timespec> {
        (!self.waiting.is_empty()).then_some(RETRY_INTERVAL)
    }
}

impl AsFd for SyscallSupervisor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// The lower half of a register, which is all that the kernel uses of an `int` argument.
fn lower_half(argument: u64) -> u32 {
    u32::try_from(argument & u64::from(u32::MAX)).unwrap_or(0)
}
