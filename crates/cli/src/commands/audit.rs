//! `ringfence audit`: the audit log, which says who did what, with which outcome.

mod export;
mod time;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::failure::Failure;

/// Read the audit log of all servers that use the state directory.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Export(export::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        Command::Export(arguments) => export::run(arguments),
    }
}
