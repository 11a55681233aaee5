//! The `ringfence` program: parses the command line and runs one command, or one of the program's own roles.
//!
//! No thread is started before the command or role runs: a sandbox can only be started from a process with a single
//! thread.

mod command_line;
mod commands;
mod configuration;
mod database;
mod exit_code;
mod failure;
mod http_client;
mod inherited_socket;
mod operator_client;
mod options;
mod output;
mod roles;
mod self_exe;
mod service_manager;
mod signals;
mod socket_directory;
mod table;

use std::process::ExitCode;

fn main() -> ExitCode {
    match command_line::parse() {
        Ok(command) => command.run().unwrap_or_else(|failure| failure.show()),
        Err(error) => {
            let _ = error.print();
            // clap's exit code, 2, could be mistaken for that of the command in `ringfence run`.
            ExitCode::from(if error.use_stderr() { exit_code::RINGFENCE_FAILED } else { 0 })
        }
    }
}
