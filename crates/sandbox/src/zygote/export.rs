//! The symbol that the zygote's Python program calls. Exporting it and taking over its descriptor needs `unsafe`.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};

use super::serve::serve;
use crate::init::{EnterInterpreter, register_interpreter};

/// Turns the calling process into a zygote that serves `socket`. Returns an exit code if the process cannot become a
/// zygote, and otherwise never.
///
/// The process must have one thread. `socket` belongs to this function from now on. `enter_interpreter` must stay
/// callable in all forks of this process.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ringfence_zygote(socket: c_int, enter_interpreter: EnterInterpreter) -> c_int {
    if socket < 0 || register_interpreter(enter_interpreter).is_err() {
        return 1;
    }
    // SAFETY: the caller has transferred the ownership of the descriptor to this function.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    serve(socket)
}
