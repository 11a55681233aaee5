//! The roles in which this program starts itself. They are hidden commands, not part of the interface.

use std::process::ExitCode;

use clap::Subcommand;

use crate::commands::doctor::escape;
use crate::commands::up::{self, worker};
use crate::failure::Failure;
use crate::self_exe::set_process_name;

#[derive(Subcommand)]
pub(crate) enum Role {
    /// Serves under a supervisor; started by `ringfence up` with its options
    #[command(hide = true, name = worker::ROLE)]
    Worker(Box<up::Arguments>),
    /// Tries to escape from the sandbox in which it runs; started by `ringfence doctor`
    #[command(hide = true, name = escape::ROLE)]
    Escape(escape::Arguments),
}

pub(crate) fn run(role: Role) -> Result<ExitCode, Failure> {
    match role {
        Role::Worker(arguments) => worker::run(arguments),
        Role::Escape(arguments) => escape::run(&arguments),
    }
}

/// Runs the role of the launcher: starts sandboxes for a server, over a socket on standard input. The process has a
/// single thread for as long as it runs.
pub(crate) fn launch_sandboxes() -> Result<ExitCode, Failure> {
    set_process_name();
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)
        .map_err(|errno| Failure::new("the launcher has no socket on standard input").caused_by(&errno))?;
    ringfence_backend::run_launcher(socket)?;
    Ok(ExitCode::SUCCESS)
}
