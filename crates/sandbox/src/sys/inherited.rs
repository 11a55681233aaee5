//! Descriptors that whoever started this process has left open for it.

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, FdFlags, Result, fcntl_getfd, fcntl_setfd};

/// The first descriptor after the standard streams, which is where service managers put what they pass on.
const FIRST: RawFd = 3;

/// Takes the first descriptor after the standard streams; it is not passed on to programs that this one starts. Once in
/// the life of a process, and to be called before anything else is opened: what has that number then was inherited.
pub fn take_inherited() -> Result<OwnedFd> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    if IS_TAKEN.swap(true, Ordering::Relaxed) {
        return Err(Errno::BADF);
    }
    // SAFETY: only asked whether it is open, and for its flags; both are well defined for any number.
    let found = unsafe { BorrowedFd::borrow_raw(FIRST) };
    let flags = fcntl_getfd(found)?;
    // What this process opens itself is closed on exec; what it has inherited cannot have been.
    if flags.contains(FdFlags::CLOEXEC) {
        return Err(Errno::BADF);
    }
    fcntl_setfd(found, FdFlags::CLOEXEC)?;
    // SAFETY: it is open, was inherited, and is taken only once: nothing else in this process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(FIRST) })
}
