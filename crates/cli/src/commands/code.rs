//! `ringfence code`: what callers of code mode have saved. No server needs to run.

mod import_tools;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::failure::Failure;

/// Manage what callers of code mode have saved for later sessions.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    ImportTools(import_tools::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        Command::ImportTools(arguments) => import_tools::run(arguments),
    }
}
