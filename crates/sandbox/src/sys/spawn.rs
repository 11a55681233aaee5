//! Starts a program as a new process.

use std::ffi::{CStr, CString, c_int};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use rustix::io::{Errno, Result};
use rustix::process::Pid;

use super::SignalSet;

/// Arguments or environment in the form that execve(2) requires.
#[derive(Debug)]
pub(crate) struct ExecStrings {
    strings: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl ExecStrings {
    pub(crate) fn new(strings: Vec<CString>) -> Self {
        // The bytes of a CString are on the heap: they do not move with the CString.
        let pointers = strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect();
        Self { strings, pointers }
    }

    pub(crate) fn first(&self) -> Option<&CStr> {
        self.strings.first().map(CString::as_c_str)
    }
}

/// The descriptors of a new process.
pub(crate) enum StandardStreams<'a> {
    /// From 0 on. A source must not have the number of an earlier target: all sources are above 2, and at most the last
    /// target is.
    Descriptors(Vec<BorrowedFd<'a>>),
    /// A terminal. The new process opens it, so that it becomes the controlling terminal of the new session.
    Terminal(&'a CStr),
}

/// Starts a program in a new session, with default signal actions, an empty signal mask, and no other descriptors than
/// `streams` (all others are close-on-exec).
///
/// `posix_spawn(3)` shares memory with the child until the exec, where fork would copy page tables, and returns the
/// error of execve.
pub(crate) fn spawn(
    program: &CStr,
    argv: &ExecStrings,
    environment: &ExecStrings,
    streams: &StandardStreams<'_>,
) -> Result<Pid> {
    let mut actions = SpawnActions::new()?;
    match streams {
        StandardStreams::Descriptors(descriptors) => {
            for (target, source) in (0..).zip(descriptors) {
                actions.duplicate(source.as_raw_fd(), target)?;
            }
        }
        StandardStreams::Terminal(path) => {
            actions.open(0, path)?;
            actions.duplicate(0, 1)?;
            actions.duplicate(0, 2)?;
        }
    }
    let attributes = SpawnAttributes::new()?;
    let mut pid = 0;
    // SAFETY: the arrays are null-terminated and point to C strings that `ExecStrings` owns; execve does not write to
    // them, although the type allows it; actions and attributes are initialised.
    check_spawn(unsafe {
        libc::posix_spawn(
            &raw mut pid,
            program.as_ptr(),
            &raw const actions.0,
            &raw const attributes.0,
            argv.pointers.as_ptr().cast(),
            environment.pointers.as_ptr().cast(),
        )
    })?;
    Pid::from_raw(pid).ok_or(Errno::INVAL)
}

struct SpawnActions(libc::posix_spawn_file_actions_t);

impl SpawnActions {
    fn new() -> Result<Self> {
        let mut actions = std::mem::MaybeUninit::uninit();
        // SAFETY: the call initialises the structure.
        check_spawn(unsafe { libc::posix_spawn_file_actions_init(actions.as_mut_ptr()) })?;
        // SAFETY: initialised just now.
        Ok(Self(unsafe { actions.assume_init() }))
    }

    fn duplicate(&mut self, source: RawFd, target: RawFd) -> Result<()> {
        // SAFETY: the actions are initialised; only the child uses the numbers.
        check_spawn(unsafe { libc::posix_spawn_file_actions_adddup2(&raw mut self.0, source, target) })
    }

    fn open(&mut self, target: RawFd, path: &CStr) -> Result<()> {
        // SAFETY: the actions are initialised, and the path is copied.
        check_spawn(unsafe {
            libc::posix_spawn_file_actions_addopen(&raw mut self.0, target, path.as_ptr(), libc::O_RDWR, 0)
        })
    }
}

impl Drop for SpawnActions {
    fn drop(&mut self) {
        // SAFETY: initialised in `new`, and not used afterwards.
        unsafe { libc::posix_spawn_file_actions_destroy(&raw mut self.0) };
    }
}

struct SpawnAttributes(libc::posix_spawnattr_t);

impl SpawnAttributes {
    fn new() -> Result<Self> {
        let mut attributes = std::mem::MaybeUninit::uninit();
        // SAFETY: the call initialises the structure.
        check_spawn(unsafe { libc::posix_spawnattr_init(attributes.as_mut_ptr()) })?;
        // SAFETY: initialised just now.
        let mut attributes = Self(unsafe { attributes.assume_init() });
        let (none, all) = (SignalSet::new(&[]), SignalSet::all());
        let flags = c_int::from(libc::POSIX_SPAWN_SETSID) | libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETSIGMASK;
        let raw = &raw mut attributes.0;
        // SAFETY: the attributes are initialised, the sets valid, and all are copied.
        unsafe {
            check_spawn(libc::posix_spawnattr_setsigdefault(raw, all.as_ptr()))?;
            check_spawn(libc::posix_spawnattr_setsigmask(raw, none.as_ptr()))?;
            check_spawn(libc::posix_spawnattr_setflags(raw, flags.try_into().map_err(|_| Errno::INVAL)?))?;
        }
        Ok(attributes)
    }
}

impl Drop for SpawnAttributes {
    fn drop(&mut self) {
        // SAFETY: initialised in `new`, and not used afterwards.
        unsafe { libc::posix_spawnattr_destroy(&raw mut self.0) };
    }
}

/// Functions of the `posix_spawn` family return an error number instead of setting `errno`.
fn check_spawn(result: c_int) -> Result<()> {
    if result == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(result)) }
}
