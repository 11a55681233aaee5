//! Signals as something to wait for.

use std::os::fd::{FromRawFd, OwnedFd};

use rustix::io::{Errno, Result};
use rustix::process::Signal;

use super::check;

/// Ignores nothing any more that whoever started this process had it ignore, as `nohup` does, but the end of a pipe. What
/// is ignored stays so in all that a process starts.
pub(crate) fn heed_ignored() {
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| *signal != libc::SIGPIPE) {
        // SAFETY: plain data, of which all zeros is a value.
        let mut found: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: only asks, into a place of the right type; a number that is no signal is an error code.
        let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut found) };
        if asked == 0 && found.sa_sigaction == libc::SIG_IGN {
            // SAFETY: no handler of ours is involved.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

/// A set of signals, as the kernel wants it.
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

    /// Holds nothing back from this thread any more.
    pub(crate) fn unblock_all() -> Result<()> {
        let none = Self::new(&[]);
        // SAFETY: the set is valid; the old mask is not asked for.
        check(unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none.0, std::ptr::null_mut()) }.into()).map(drop)
    }

    /// Holds these signals back from this thread, and gives a descriptor that reads them.
    pub fn block_to_signalfd(&self) -> Result<OwnedFd> {
        // SAFETY: the set is valid; the old mask is not asked for.
        check(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const self.0, std::ptr::null_mut()) }.into())?;
        // SAFETY: the set is valid, -1 asks for a new descriptor.
        let fd =
            check(unsafe { libc::signalfd(-1, &raw const self.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) }.into())?;
        // SAFETY: a descriptor that the kernel has just made for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd.try_into().map_err(|_| Errno::INVAL)?) })
    }
}
