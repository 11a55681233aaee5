//! `ringfence secret`: credentials that sandboxes use without seeing them. No server needs to run.
#![allow(clippy::doc_markdown)] // the doc comments of arguments are the text of `--help`

mod add;
mod list;
mod remove;
mod value;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use ringfence_config::Configuration;

use crate::configuration::sources;
use crate::failure::Failure;

/// Manage credentials that sandboxes use without seeing them.
///
/// A sandbox with a secret has a placeholder in a variable. In requests to the hosts of the secret, ringfence replaces
/// the placeholder with the value. Values are stored in a file of the state directory that only you can read. Secrets
/// can also be defined in the configuration file under [secrets.NAME].
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
    Add(add::Arguments),
    List(list::Arguments),
    Remove(remove::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    super::serve::forbid_core_dumps();
    let config = arguments.config.as_ref();
    match &arguments.command {
        Command::Add(arguments) => add::run(arguments, config),
        Command::List(arguments) => list::run(arguments, config),
        Command::Remove(arguments) => remove::run(arguments, config),
    }
}

/// Loads a configuration that may name secrets that do not exist.
fn load(config: Option<&PathBuf>) -> Result<Configuration, Failure> {
    ringfence_config::load_with_missing_secrets(&sources(config.cloned(), Vec::new())).map_err(Failure::from)
}
