//! `ringfence session`: the sessions of all servers that this user runs.

mod exec;
mod list;
mod logs;
mod show;
mod stop;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::failure::Failure;

/// List and use the sessions of running servers.
///
/// Queries all servers of this user over their sockets in the state directory. IDs may be shortened to a unique prefix.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    List(list::Arguments),
    Show(show::Arguments),
    Stop(stop::Arguments),
    Exec(exec::Arguments),
    Logs(logs::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        Command::List(arguments) => list::run(arguments),
        Command::Show(arguments) => show::run(arguments),
        Command::Stop(arguments) => stop::run(arguments),
        Command::Exec(arguments) => exec::run(arguments),
        Command::Logs(arguments) => logs::run(arguments),
    }
}
