//! How an interpreter that this library is loaded into becomes a zygote, and how its forks come back to it.

use std::ffi::{CString, c_char, c_int};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::OnceLock;

/// Takes over a forked process as the kernel of a session: its environment, as `5:A=one` after each other. Never returns.
pub(crate) type Interpreter = extern "C" fn(environment: *const c_char);

/// Set in a zygote, and so in all that is forked from it.
static INTERPRETER: OnceLock<Interpreter> = OnceLock::new();

/// Turns the calling process into a zygote that serves `socket`. Returns only if it cannot.
///
/// The caller gives `socket` away, has one thread, and keeps `interpreter` callable.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ringfence_zygote(socket: c_int, interpreter: Interpreter) -> c_int {
    if socket < 0 || INTERPRETER.set(interpreter).is_err() {
        return 1;
    }
    // SAFETY: the caller has given the descriptor to us.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    crate::zygote::serve(socket)
}

/// Goes on as the interpreter, if this process was forked from a zygote.
pub(crate) fn enter_interpreter(environment: &CString) -> Option<()> {
    let interpreter = INTERPRETER.get()?;
    interpreter(environment.as_ptr());
    Some(())
}

pub(crate) fn has_interpreter() -> bool {
    INTERPRETER.get().is_some()
}
