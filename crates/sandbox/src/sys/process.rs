//! Forks, and the end of a forked process.

use std::ffi::c_int;
use std::io::Read as _;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{Errno, Result};
use rustix::process::Pid;

use super::check;

/// The constant of the libc crate has a type that is too narrow for its value.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// The side of a fork on which a function returns.
pub(crate) enum Fork {
    Child,
    Parent { pid: Pid, pidfd: OwnedFd },
}

/// The parent of a forked process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parent {
    This,
    /// The parent of this process.
    Grandparent,
}

/// Forks into new namespaces, and into `cgroup` (a v2 directory) if one is given.
///
/// The caller must be single-threaded: the child continues with a copy of this process's memory, in which a lock that
/// another thread holds would never be released. `launch` checks this.
pub(crate) fn clone_into(namespaces: c_int, cgroup: Option<BorrowedFd<'_>>, parent: Parent) -> Result<Fork> {
    let mut pidfd: RawFd = -1;
    // SAFETY: `clone_args` is plain data, for which all zeroes is a valid value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = (namespaces | libc::CLONE_PIDFD).cast_unsigned().into();
    args.pidfd = (&raw mut pidfd) as u64;
    match parent {
        Parent::This => args.exit_signal = libc::SIGCHLD as u64,
        // The exit signal is then that of this process.
        Parent::Grandparent => args.flags |= libc::CLONE_PARENT as u64,
    }
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd().cast_unsigned().into();
    }
    // SAFETY: without CLONE_VM the child gets a copy of all memory, this stack included, so both sides return here;
    // `args` and `pidfd` live until then.
    let pid = check(unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) })?;
    if pid == 0 {
        return Ok(Fork::Child);
    }
    Ok(Fork::Parent {
        pid: Pid::from_raw(pid.try_into().unwrap_or(0)).ok_or(Errno::INVAL)?,
        // SAFETY: CLONE_PIDFD made this descriptor for this process alone.
        pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) },
    })
}

/// Forks through the C library, so that its state (locks, the thread's id) is valid in the child. Returns `None` in the
/// child.
///
/// The caller must be single-threaded, as for [`clone_into`].
pub(crate) fn fork() -> Result<Option<Pid>> {
    // SAFETY: the process has one thread, so the child may do everything that the parent may.
    let pid = check(unsafe { libc::fork() }.into())?;
    Ok(Pid::from_raw(pid.try_into().map_err(|_| Errno::INVAL)?))
}

/// Overwrites the command line and the environment of this process with zeroes.
///
/// The init inherits them from the process that it was forked from, and `/proc/1/cmdline` would show them to the guest.
pub(crate) fn erase_arguments() -> std::io::Result<()> {
    let mut line = [0; 1024];
    let length = std::fs::File::open("/proc/self/stat")?.read(&mut line)?;
    // The process name, field 2, may have any bytes; the fields after it are ASCII.
    let stat = String::from_utf8_lossy(&line[..length]);
    // Fields 48 to 51 of proc_pid_stat(5), counted from the end of the name, which may contain anything.
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
            // SAFETY: the kernel put both blocks on this process's stack, writable. After the fork nothing reads them,
            // and the parent has its own copy.
            unsafe { std::ptr::write_bytes(start as *mut u8, 0, end - start) };
        }
    }
    Ok(())
}

/// Ends this process without running exit handlers, which belong to the process that it was forked from.
pub(crate) fn exit_now(code: c_int) -> ! {
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(code) }
}
