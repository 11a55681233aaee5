//! Installs seccomp filters, and receives the system calls that a filter passes to the init (`seccomp_unotify(2)`).

use std::ffi::{c_int, c_long, c_ulong};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::{Errno, FdFlags, Result};

use super::check;

/// Receives the system calls that the filter passes to the init.
pub(crate) struct NotificationListener(OwnedFd);

/// A system call of a guest that is blocked until the init responds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NotifiedCall {
    id: u64,
    /// The id of the calling thread in this process's PID namespace.
    pub(crate) thread: u32,
    pub(crate) number: c_long,
    /// The values of the argument registers. The guest can change the memory behind a pointer at any time.
    pub(crate) arguments: [u64; 6],
}

/// Installs a seccomp filter on this thread. All children that it starts later inherit the filter.
pub(crate) fn install_seccomp(program: &[libc::sock_filter]) -> Result<NotificationListener> {
    let program = libc::sock_fprog {
        len: program.len().try_into().map_err(|_| Errno::INVAL)?,
        filter: program.as_ptr().cast_mut(),
    };
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // SAFETY: the kernel copies `len` instructions from `filter`, which stays borrowed through the call.
    let listener =
        check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) })?;
    // SAFETY: the kernel made this descriptor for this process alone. It is close-on-exec.
    Ok(NotificationListener(unsafe { OwnedFd::from_raw_fd(c_int::try_from(listener).map_err(|_| Errno::BADF)?) }))
}

impl NotificationListener {
    /// Receives the next call. Does not block if the listener was readable. Fails with `ENOENT` if the calling thread
    /// has ended.
    pub(crate) fn receive(&self) -> Result<NotifiedCall> {
        // SAFETY: a plain structure, for which all zeroes is a valid value; the kernel requires zeroes.
        let mut request: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: this ioctl command writes a `seccomp_notif`.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut request) }.into())?;
        let libc::seccomp_notif { id, pid, data, .. } = request;
        Ok(NotifiedCall { id, thread: pid, number: data.nr.into(), arguments: data.args })
    }

    /// Lets the kernel execute the call. Only for calls without pointer arguments: the guest may have changed the
    /// memory behind a pointer since the check.
    pub(crate) fn allow(&self, call: &NotifiedCall) {
        let flags = u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap_or(0);
        self.send(&libc::seccomp_notif_resp { id: call.id, val: 0, error: 0, flags });
    }

    /// Completes the call with a result, without executing it.
    pub(crate) fn respond(&self, call: &NotifiedCall, result: Result<i32>) {
        let (val, error) = match result {
            Ok(value) => (value.into(), 0),
            Err(errno) => (0, -errno.raw_os_error()),
        };
        self.send(&libc::seccomp_notif_resp { id: call.id, val, error, flags: 0 });
    }

    /// Completes the call with a copy of `descriptor`, and returns its number in the calling process.
    pub(crate) fn respond_with_descriptor(
        &self,
        call: &NotifiedCall,
        descriptor: BorrowedFd<'_>,
        is_close_on_exec: bool,
    ) -> Result<i32> {
        let close_on_exec = if is_close_on_exec { libc::O_CLOEXEC.cast_unsigned() } else { 0 };
        let request = libc::seccomp_notif_addfd {
            id: call.id,
            flags: u32::try_from(libc::SECCOMP_ADDFD_FLAG_SEND).unwrap_or(0),
            srcfd: descriptor.as_raw_fd().cast_unsigned(),
            newfd: 0,
            newfd_flags: close_on_exec,
        };
        // SAFETY: this ioctl command reads a `seccomp_notif_addfd`.
        let added = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw const request) };
        check(added.into()).map(|_| added)
    }

    /// Whether the call is still blocked. As long as it is blocked, `thread` refers to the same thread.
    pub(crate) fn is_pending(&self, call: &NotifiedCall) -> bool {
        // SAFETY: this ioctl command reads a `u64`.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const call.id) };
        result == 0
    }

    fn send(&self, response: &libc::seccomp_notif_resp) {
        // Fails only if the calling thread has ended, which needs no response.
        // SAFETY: this ioctl command reads a `seccomp_notif_resp`.
        unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const *response) };
    }
}

impl AsFd for NotificationListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Creates an inotify instance on behalf of a guest. The upper half of the register of `flags` contains a mark: the
/// filter allows calls with a mark, and passes those without one to the init. The kernel ignores the upper half.
pub(crate) fn create_inotify_instance(flags: u32) -> Result<OwnedFd> {
    const MARK: c_ulong = 1 << 32;
    // SAFETY: takes no pointer.
    let created = check(unsafe { libc::syscall(libc::SYS_inotify_init1, MARK | c_ulong::from(flags)) })?;
    // SAFETY: the kernel made this descriptor for this process alone.
    let instance = unsafe { OwnedFd::from_raw_fd(c_int::try_from(created).map_err(|_| Errno::BADF)?) };
    rustix::io::fcntl_setfd(&instance, FdFlags::CLOEXEC)?;
    Ok(instance)
}
