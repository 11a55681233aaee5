//! `ringfence server`: the MCP servers that are hosted or reached.
#![allow(clippy::doc_markdown)] // the comments on arguments are what `--help` shows

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

/// Add and see the MCP servers that ringfence hosts or reaches.
///
/// Those that are added here are kept in the state directory; a server that runs takes them up within a second. Others
/// are in the configuration, under [servers.NAME], or in the files that hosting.files names.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The configuration file [default: ringfence.toml here, or in ~/.config/ringfence]
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
        Command::Enable(arguments) => enable::run(&arguments.names, enable::Switch::On, config),
        Command::Disable(arguments) => enable::run(&arguments.names, enable::Switch::Off, config),
        Command::Import(arguments) => import::run(arguments, config),
        Command::Tools(arguments) => tools::run(arguments),
        Command::Search(arguments) => search::run(arguments, config),
        Command::Logs(arguments) => logs::run(arguments),
        Command::Pin(arguments) => pin::run(arguments),
    }
}
