//! System calls that have no safe wrapper in rustix: the only `unsafe` code of ringfence.
//!
//! Each function checks its result and gives back an owned descriptor or an errno. None keeps a
//! pointer after it returns.
#![allow(unsafe_code)]

mod entry;
mod inherited;
mod notification;
mod signals;
mod spawn;
mod tcp;

use std::ffi::{c_int, c_long, c_ulong};
use std::io::Read as _;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{Errno, Result};
use rustix::process::Pid;

pub(crate) use entry::{enter_interpreter, has_interpreter};
pub use inherited::take_inherited_descriptor;
pub(crate) use notification::{Listener, PendingCall, inotify_instance, install_seccomp};
pub use signals::SignalSet;
pub(crate) use signals::heed_ignored;
pub(crate) use spawn::{ExecStrings, StandardStreams, spawn};
pub use tcp::{TcpProgress, tcp_progress};

/// The one of the libc crate is of a type too narrow for its value.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Which side of a fork this is.
pub(crate) enum Fork {
    Child,
    Parent { pid: Pid, pidfd: OwnedFd },
}

/// Whose child a fork is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parent {
    This,
    /// This process's own parent.
    Grandparent,
}

/// Forks into new namespaces; the child is born in `cgroup` (a v2 directory) where one is given.
///
/// The caller must be single-threaded: the child goes on with a copy of this process's memory, and a
/// lock held by another thread would stay held for ever. `launch` checks this.
pub(crate) fn clone_into(namespaces: c_int, cgroup: Option<BorrowedFd<'_>>, parent: Parent) -> Result<Fork> {
    let mut pidfd: RawFd = -1;
    // SAFETY: `clone_args` is plain data, for which all zeroes is a valid value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = (namespaces | libc::CLONE_PIDFD).cast_unsigned().into();
    args.pidfd = (&raw mut pidfd) as u64;
    match parent {
        Parent::This => args.exit_signal = libc::SIGCHLD as u64,
        // The signal is then the one that this process was born with.
        Parent::Grandparent => args.flags |= libc::CLONE_PARENT as u64,
    }
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd().cast_unsigned().into();
    }
    // SAFETY: without CLONE_VM the child gets a copy of all memory, this stack included, so both
    // sides return here; `args` and `pidfd` live until then.
    let pid = check(unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) })?;
    if pid == 0 {
        return Ok(Fork::Child);
    }
    Ok(Fork::Parent {
        pid: Pid::from_raw(pid.try_into().unwrap_or(0)).ok_or(Errno::INVAL)?,
        // SAFETY: CLONE_PIDFD made this descriptor for us alone.
        pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) },
    })
}

/// Forks as the C library does, so that what it keeps of the process (locks, the thread's id) is right in the child.
///
/// The caller must be single-threaded, as for [`clone_into`]. `None` is the child.
pub(crate) fn fork() -> Result<Option<Pid>> {
    // SAFETY: with one thread, the child may do all that the parent may.
    let pid = check(unsafe { libc::fork() }.into())?;
    Ok(Pid::from_raw(pid.try_into().map_err(|_| Errno::INVAL)?))
}

/// Makes `source` the descriptor `target`, whatever that was, and keeps it over exec.
pub(crate) fn place_descriptor(source: RawFd, target: RawFd) -> Result<()> {
    // SAFETY: both are plain numbers; callers own no descriptor `target` that they use afterwards.
    check(unsafe { libc::dup2(source, target) }.into()).map(drop)
}

/// Overwrites the command line and environment that this process was started with.
///
/// The init inherits them from its starter, and `/proc/1/cmdline` would show them to the guest.
pub(crate) fn forget_arguments() -> std::io::Result<()> {
    let mut line = [0; 1024];
    let length = std::fs::File::open("/proc/self/stat")?.read(&mut line)?;
    // Only the name could be no text, and what follows it is.
    let stat = String::from_utf8_lossy(&line[..length]);
    // Fields 48 to 51 of proc_pid_stat(5), counted from behind the name, which may hold anything.
    let fields: Vec<usize> = stat
        .rsplit(") ")
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(45)
        .take(4)
        .filter_map(|field| field.parse().ok())
        .collect();
    let [argument_start, argument_end, environment_start, environment_end] = fields[..] else {
        return Err(std::io::ErrorKind::InvalidData.into());
    };
    for (start, end) in [(argument_start, argument_end), (environment_start, environment_end)] {
        if start != 0 && start < end {
            // SAFETY: the kernel put both blocks on this process's own stack, writable; after the fork
            // nothing reads them any more, and the other process has its own copy.
            unsafe { std::ptr::write_bytes(start as *mut u8, 0, end - start) };
        }
    }
    Ok(())
}

/// Ends this process without running exit handlers, which belong to the process it was forked from.
pub(crate) fn exit_now(code: c_int) -> ! {
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Closes every descriptor from `first` to `last`, or only marks them close-on-exec.
pub(crate) fn close_range(first: u32, last: u32, flags: c_int) -> Result<()> {
    // SAFETY: takes no pointers; callers own no descriptor in the range that they use afterwards.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) }).map(drop)
}

/// Moves a range of this process's memory into large pages, with what it holds.
pub(crate) fn collapse(start: usize, length: usize) -> Result<()> {
    const MADV_COLLAPSE: c_int = 25;
    // SAFETY: changes which frames hold the range, never what they hold; a range that is not ours is refused.
    check(unsafe { libc::madvise(start as *mut libc::c_void, length, MADV_COLLAPSE) }.into()).map(drop)
}

/// Flags of a mount, and what to give back to whom (`mount_setattr(2)`).
pub(crate) struct MountAttributes<'fd> {
    pub(crate) set: u64,
    pub(crate) id_map: Option<BorrowedFd<'fd>>,
}

/// Changes the mount at `tree`, with all mounts below it when `recursive`, and parts it from its peers.
pub(crate) fn mount_setattr(
    tree: BorrowedFd<'_>,
    attributes: &MountAttributes<'_>,
    recursive: Recursive,
) -> Result<()> {
    let args = libc::mount_attr {
        attr_set: attributes.set | if attributes.id_map.is_some() { libc::MOUNT_ATTR_IDMAP } else { 0 },
        attr_clr: 0,
        // A clone is a peer of the mount that it was made from: what is mounted on either would appear on both.
        propagation: libc::MS_PRIVATE,
        userns_fd: attributes.id_map.map_or(0, |fd| fd.as_raw_fd().cast_unsigned().into()),
    };
    let recursive = match recursive {
        Recursive::Yes => libc::AT_RECURSIVE,
        Recursive::No => 0,
    };
    // SAFETY: the path is a C string, `args` is of the size given, and both live through the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | recursive,
            &raw const args,
            size_of_val(&args),
        )
    })
    .map(drop)
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recursive {
    Yes,
    No,
}

/// The Landlock version of this kernel; `None` where it is absent or switched off.
pub(crate) fn landlock_abi() -> Option<u32> {
    const VERSION: c_int = 1;
    // SAFETY: with this flag the kernel takes a null pointer and a size of 0.
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, VERSION) };
    u32::try_from(abi).ok().filter(|abi| *abi > 0)
}

/// Moves this process into new namespaces. Not for `CLONE_FILES`, which would change who shares descriptors.
pub(crate) fn unshare(namespaces: c_int) -> Result<()> {
    // SAFETY: namespaces change what names mean; no descriptor or memory depends on them.
    check(unsafe { libc::unshare(namespaces) }.into()).map(drop)
}

/// Leaves the caller's session keyring for an empty one.
pub(crate) fn join_new_session_keyring() -> Result<()> {
    const JOIN_SESSION_KEYRING: c_ulong = 1;
    // SAFETY: a null name asks for an anonymous keyring.
    check(unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<u8>()) }).map(drop)
}

/// Brings up the loopback interface of this network namespace.
pub(crate) fn raise_loopback(socket: BorrowedFd<'_>) -> Result<()> {
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

fn check(result: c_long) -> Result<c_long> {
    if result < 0 { Err(last_errno()) } else { Ok(result) }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}
