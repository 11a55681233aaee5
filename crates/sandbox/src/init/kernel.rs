//! Forks the interpreter of a session off an init that was itself forked from a zygote.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, set_dumpable_behavior, setsid};

use crate::sys;
use crate::sys::SignalSet;

/// Starts it with these descriptors from 0 on, of which the last is its control channel.
pub(super) fn fork(
    workdir: &Path,
    environment: &BTreeMap<String, String>,
    descriptors: &[OwnedFd],
) -> Result<Pid, Errno> {
    if !sys::has_interpreter() {
        return Err(Errno::NOSYS);
    }
    let environment = CString::new(write_down(environment)).map_err(|_| Errno::INVAL)?;
    if let Some(pid) = sys::fork()? {
        return Ok(pid);
    }
    if become_kernel(workdir, descriptors).is_ok() {
        sys::enter_interpreter(&environment);
    }
    sys::exit_now(1)
}

/// As the zygote reads it: each variable with its length before it. Values may hold anything but a zero.
fn write_down(environment: &BTreeMap<String, String>) -> String {
    let variable = |(name, value): (&String, &String)| format!("{}:{name}={value}", name.len() + 1 + value.len());
    environment.iter().map(variable).collect()
}

/// The steps that an exec does by itself: what the init has must not be the guest's.
fn become_kernel(workdir: &Path, descriptors: &[OwnedFd]) -> Result<(), Errno> {
    setsid()?;
    rustix::process::chdir(workdir)?;
    let mut next = 0;
    for descriptor in descriptors {
        // All lie above 2 and in rising order, so that none is overwritten before it is moved.
        if descriptor.as_raw_fd() < next {
            return Err(Errno::BADF);
        }
        sys::place_descriptor(descriptor.as_raw_fd(), next)?;
        next += 1;
    }
    sys::close_range(next.cast_unsigned(), u32::MAX, 0)?;
    // As after an exec: the guest may look at itself.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    SignalSet::unblock_all()
}
