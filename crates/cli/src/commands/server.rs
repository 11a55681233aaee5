//! `ringfence server`: the MCP servers that ringfence hosts or connects to.
#![allow(clippy::doc_markdown)] // the doc comments of arguments are the text of `--help`

mod add;
mod box_option;
mod disable;
mod enable;
mod import;
mod list;
mod logs;
mod pin;
pub(super) mod registry;
mod remove;
mod search;
mod show;
mod tools;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::failure::Failure;

/// Manage the MCP servers that ringfence hosts or connects to.
///
/// Servers that are added with this command are stored in the state directory; a running ringfence server starts them
/// within a second. Servers can also be defined in the configuration file under [servers.NAME], or in the files of the
/// key hosting.files.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The configuration file [default: ringfence.toml in the current directory, or in ~/.config/ringfence]
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    List(list::Arguments),
    Show(show::Arguments),
    Add(Box<add::Arguments>),
    Remove(remove::Arguments),
    Enable(enable::Arguments),
    Disable(disable::Arguments),
    Import(import::Arguments),
    Tools(tools::Arguments),
    Search(search::Arguments),
    Logs(logs::Arguments),
    Pin(pin::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let config = arguments.config.as_ref();
    match &arguments.command {
        Command::List(arguments) => list::run(arguments, config),
        Command::Show(arguments) => show::run(arguments, config),
        Command::Add(arguments) => add::run(arguments, config),
        Command::Remove(arguments) => remove::run(arguments, config),
        Command::Enable(arguments) => enable::run(arguments, config),
        Command::Disable(arguments) => disable::run(arguments, config),
        Command::Import(arguments) => import::run(arguments, config),
        Command::Tools(arguments) => tools::run(arguments),
        Command::Search(arguments) => search::run(arguments, config),
        Command::Logs(arguments) => logs::run(arguments),
        Command::Pin(arguments) => pin::run(arguments),
    }
}
