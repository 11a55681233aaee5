//! System calls for which rustix has no safe wrapper: the `unsafe` code of ringfence. Only `zygote/export.rs`, the
//! entry point of the shared library, has more.
//!
//! Every function checks the result and returns an owned descriptor or an errno. None keeps a pointer after it returns.
#![allow(unsafe_code)]

mod descriptors;
mod mount;
mod process;
mod route;
mod seccomp;
mod signals;
mod spawn;
mod tcp;

use std::ffi::{c_int, c_long, c_ulong};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::{Errno, Result};

pub use descriptors::take_inherited_descriptor;
pub(crate) use descriptors::{close_range, duplicate_to};
pub(crate) use mount::{MountAttributes, Recursive, clone_tree, mount_setattr};
pub(crate) use process::{Fork, Parent, clone_into, erase_arguments, exit_now, fork};
pub(crate) use route::add_local_network;
pub(crate) use seccomp::{NotificationListener, NotifiedCall, create_inotify_instance, install_seccomp};
pub use signals::SignalSet;
pub(crate) use signals::reset_ignored_signals;
pub(crate) use spawn::{ExecStrings, StandardStreams, spawn};
pub use tcp::{TcpProgress, tcp_progress};

/// Moves this process into new namespaces. Not for `CLONE_FILES`, which would change who shares descriptors.
pub(crate) fn unshare(namespaces: c_int) -> Result<()> {
    // SAFETY: namespaces change what names mean; no descriptor or memory depends on them.
    check(unsafe { libc::unshare(namespaces) }.into()).map(drop)
}

/// Replaces the session keyring of this process with a new, empty one.
pub(crate) fn join_new_session_keyring() -> Result<()> {
    const JOIN_SESSION_KEYRING: c_ulong = 1;
    // SAFETY: a null name requests an anonymous keyring.
    check(unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<u8>()) }).map(drop)
}

/// Brings up the loopback interface of this network namespace.
pub(crate) fn bring_up_loopback(socket: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: `ifreq` is plain data, for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags =
        libc::c_short::try_from(libc::IFF_UP | libc::IFF_RUNNING).map_err(|_| Errno::INVAL)?;
    // SAFETY: `request` is the structure that SIOCSIFFLAGS reads, and lives through the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) }.into()).map(drop)
}

/// The Landlock ABI version of this kernel; `None` if Landlock is absent or disabled.
pub(crate) fn landlock_abi() -> Option<u32> {
    const VERSION: c_int = 1;
    // SAFETY: with this flag the kernel requires a null pointer and a size of 0.
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, VERSION) };
    u32::try_from(abi).ok().filter(|abi| *abi > 0)
}

/// Moves a range of this process's memory into huge pages.
pub(crate) fn collapse_into_huge_pages(start: usize, length: usize) -> Result<()> {
    const MADV_COLLAPSE: c_int = 25;
    // SAFETY: changes which physical pages back the range, never their contents; the kernel refuses a range that is
    // not mapped.
    check(unsafe { libc::madvise(start as *mut libc::c_void, length, MADV_COLLAPSE) }.into()).map(drop)
}

fn check(result: c_long) -> Result<c_long> {
    if result < 0 { Err(last_errno()) } else { Ok(result) }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}
