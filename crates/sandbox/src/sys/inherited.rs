//! Descriptors that whoever started this process has left open for it.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, FdFlags, Result, fcntl_setfd};

use super::check;

/// The first descriptor after the standard streams, which is where service managers put what they pass on.
const FIRST: RawFd = 3;

/// Takes the first descriptor after the standard streams; it is not passed on to programs that this one starts. Once in
/// the life of a process, and to be called before anything else is opened: what has that number then was inherited.
pub fn take_inherited_descriptor() -> Result<OwnedFd> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    if IS_TAKEN.swap(true, Ordering::Relaxed) {
        return Err(Errno::BADF);
    }
    // SAFETY: no pointer is passed; a number that is not open is an error.
    let flags = check(unsafe { libc::fcntl(FIRST, libc::F_GETFD) }.into())?;
    // What this process opens itself is closed on exec; what it has inherited cannot have been.
    if flags & libc::c_long::from(libc::FD_CLOEXEC) != 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: it is open, was inherited, and is taken only once: nothing else in this process owns it.
    let taken = unsafe { OwnedFd::from_raw_fd(FIRST) };
    fcntl_setfd(&taken, FdFlags::CLOEXEC)?;
    Ok(taken)
}
