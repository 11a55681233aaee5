//! Forks the interpreter of a session from an init that was itself forked from a zygote.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, set_dumpable_behavior, setsid};

use crate::sys;
use crate::sys::SignalSet;

/// Continues a forked process as the interpreter of a session. Never returns. The argument is the environment, encoded
/// by [`encode_environment`].
pub(crate) type EnterInterpreter = extern "C" fn(environment: *const c_char);

/// Set in a zygote, and therefore in all of its forks.
static ENTER_INTERPRETER: OnceLock<EnterInterpreter> = OnceLock::new();

/// Registers the interpreter of this zygote. Fails if there is one already.
pub(crate) fn register_interpreter(enter: EnterInterpreter) -> Result<(), EnterInterpreter> {
    ENTER_INTERPRETER.set(enter)
}

/// Starts an interpreter with these descriptors, from 0 on; the last is its control channel.
pub(super) fn fork(
    workdir: &Path,
    environment: &BTreeMap<String, String>,
    descriptors: &[OwnedFd],
) -> Result<Pid, Errno> {
    let enter = ENTER_INTERPRETER.get().ok_or(Errno::NOSYS)?;
    let environment = CString::new(encode_environment(environment)).map_err(|_| Errno::INVAL)?;
    if let Some(pid) = sys::fork()? {
        return Ok(pid);
    }
    if prepare_child(workdir, descriptors).is_ok() {
        enter(environment.as_ptr());
    }
    sys::exit_now(1)
}

/// Encodes variables as the zygote reads them, each with its length first: `5:A=one`. Values may contain any character
/// except NUL.
fn encode_environment(environment: &BTreeMap<String, String>) -> String {
    let variable = |(name, value): (&String, &String)| format!("{}:{name}={value}", name.len() + 1 + value.len());
    environment.iter().map(variable).collect()
}

/// Does in the forked child what an exec would do: the guest must not get anything from the init.
fn prepare_child(workdir: &Path, descriptors: &[OwnedFd]) -> Result<(), Errno> {
    setsid()?;
    rustix::process::chdir(workdir)?;
    let mut next = 0;
    for descriptor in descriptors {
        // All are above 2 and in rising order, so none is overwritten before it is duplicated.
        if descriptor.as_raw_fd() < next {
            return Err(Errno::BADF);
        }
        sys::duplicate_to(descriptor.as_raw_fd(), next)?;
        next += 1;
    }
    sys::close_range(next.cast_unsigned(), u32::MAX, 0)?;
    // As after an exec: the guest may inspect its own processes.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    SignalSet::unblock_all()
}
