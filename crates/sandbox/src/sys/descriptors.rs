//! Descriptors by number: inherited, duplicated to a number, closed in ranges.

use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, FdFlags, Result, fcntl_setfd};

use super::check;

/// The first descriptor after the standard streams. Service managers pass descriptors from this number on.
const FIRST_INHERITED: RawFd = 3;

/// Takes ownership of the first descriptor after the standard streams, and marks it close-on-exec.
///
/// Works once per process. Call it before the process opens anything, so that the number can only be inherited.
pub fn take_inherited_descriptor() -> Result<OwnedFd> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    if IS_TAKEN.swap(true, Ordering::Relaxed) {
        return Err(Errno::BADF);
    }
    // SAFETY: no pointer is passed; a number that is not open is an error.
    let flags = check(unsafe { libc::fcntl(FIRST_INHERITED, libc::F_GETFD) }.into())?;
    // This process opens descriptors as close-on-exec only; an inherited one cannot have that flag.
    if flags & libc::c_long::from(libc::FD_CLOEXEC) != 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: it is open, was inherited, and is taken only once: nothing else in this process owns it.
    let inherited = unsafe { OwnedFd::from_raw_fd(FIRST_INHERITED) };
    fcntl_setfd(&inherited, FdFlags::CLOEXEC)?;
    Ok(inherited)
}

/// Duplicates `source` to the number `target`, which stays open over exec. Closes an existing descriptor `target`.
pub(crate) fn duplicate_to(source: RawFd, target: RawFd) -> Result<()> {
    // SAFETY: both are plain numbers; callers own no descriptor `target` that they use afterwards.
    check(unsafe { libc::dup2(source, target) }.into()).map(drop)
}

/// Closes every descriptor from `first` to `last`, or only marks them close-on-exec (`flags`).
pub(crate) fn close_range(first: u32, last: u32, flags: c_int) -> Result<()> {
    // SAFETY: takes no pointers; callers own no descriptor in the range that they use afterwards.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) }).map(drop)
}
