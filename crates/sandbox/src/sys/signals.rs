//! Signal sets, signal descriptors and ignored signals.

use std::os::fd::{FromRawFd, OwnedFd};

use rustix::io::{Errno, Result};
use rustix::process::Signal;

use super::check;

/// Restores the default action of every ignored signal except `SIGPIPE`.
///
/// The parent of this process may have ignored signals, as `nohup` does, and child processes would inherit that.
pub(crate) fn reset_ignored_signals() {
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| *signal != libc::SIGPIPE) {
        // SAFETY: plain data, for which all zeroes is a valid value.
        let mut found: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: only reads the action, into a variable of the right type; an invalid number is an error code.
        let result = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut found) };
        if result == 0 && found.sa_sigaction == libc::SIG_IGN {
            // SAFETY: the default action has no handler function.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

/// A set of signals.
#[derive(Clone, Copy)]
pub struct SignalSet(libc::sigset_t);

impl SignalSet {
    pub fn new(signals: &[Signal]) -> Self {
        // SAFETY: `sigset_t` is plain data; sigemptyset makes it a valid set.
        let mut set = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is writable and of the right type.
        unsafe { libc::sigemptyset(&raw mut set) };
        for signal in signals {
            // SAFETY: `set` was initialised above; an unknown signal is only an error code.
            unsafe { libc::sigaddset(&raw mut set, signal.as_raw()) };
        }
        Self(set)
    }

    pub(super) fn all() -> Self {
        let mut set = Self::new(&[]);
        // SAFETY: a valid set.
        unsafe { libc::sigfillset(&raw mut set.0) };
        set
    }

    pub(super) fn as_ptr(&self) -> *const libc::sigset_t {
        &raw const self.0
    }

    /// Unblocks all signals for this thread.
    pub(crate) fn unblock_all() -> Result<()> {
        let none = Self::new(&[]);
        // SAFETY: the set is valid; the old mask is not requested.
        check(unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none.0, std::ptr::null_mut()) }.into()).map(drop)
    }

    /// Blocks these signals for this thread, and returns a signalfd that reads them.
    pub fn block_to_signalfd(&self) -> Result<OwnedFd> {
        // SAFETY: the set is valid; the old mask is not requested.
        check(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const self.0, std::ptr::null_mut()) }.into())?;
        // SAFETY: the set is valid, -1 requests a new descriptor.
        let fd =
            check(unsafe { libc::signalfd(-1, &raw const self.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) }.into())?;
        // SAFETY: the kernel made this descriptor for this process alone.
        Ok(unsafe { OwnedFd::from_raw_fd(fd.try_into().map_err(|_| Errno::INVAL)?) })
    }
}
