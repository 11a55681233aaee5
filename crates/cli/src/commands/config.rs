//! `ringfence config`: the configuration and its schema.
#![allow(clippy::doc_markdown)] // the doc comments of arguments are the text of `--help`

mod schema;
mod show;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::failure::Failure;

/// Show the configuration.
///
/// The configuration file is the one given by --config, else ringfence.toml in the current directory, else
/// ringfence/ringfence.toml in $XDG_CONFIG_HOME (~/.config). Precedence: flag, environment variable, file, default. Every
/// key has an environment variable: RINGFENCE_ and the key in upper case, with _ for each dot, for example
/// RINGFENCE_SESSIONS_TIMEOUT_S.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Show(show::Arguments),
    /// Print the JSON Schema of the configuration file
    Schema,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    match arguments.command {
        Command::Show(arguments) => show::run(arguments),
        Command::Schema => schema::run(),
    }
}
