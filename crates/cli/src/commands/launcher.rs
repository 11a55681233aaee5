//! `ringfence launcher`: the single-threaded helper of a server, which makes its sandboxes.

use std::process::ExitCode;

use crate::failure::Failure;
use crate::own_program::set_process_name;

pub(crate) fn run() -> Result<ExitCode, Failure> {
    set_process_name();
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)
        .map_err(|errno| Failure::new("the launcher has no socket").because(&errno))?;
    ringfence_sandbox::launcher::serve(socket, ringfence_backend::ZYGOTE_LIBRARY)?;
    Ok(ExitCode::SUCCESS)
}
