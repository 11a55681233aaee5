//! `ringfence cache`: the files that ringfence can download or build again.
#![allow(clippy::doc_markdown)] // the doc comments of arguments are the text of `--help`

mod prune;
mod show;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use ringfence_config::cache_directory;

use crate::failure::Failure;

/// Show or shrink the cache.
///
/// The cache has the packages that sandboxes installed from the package mirror, the packages of hosted servers and
/// templates, and unpacked images. It is in $RINGFENCE_CACHE_DIR, else in ringfence in $XDG_CACHE_HOME (~/.cache).
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Show(show::Arguments),
    Prune(prune::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        Command::Show(arguments) => show::run(arguments),
        Command::Prune(arguments) => prune::run(arguments),
    }
}

fn directory() -> Result<PathBuf, Failure> {
    cache_directory().ok_or_else(|| Failure::new("no cache directory").hint("set RINGFENCE_CACHE_DIR or HOME"))
}

fn unreadable(error: &std::io::Error) -> Failure {
    Failure::new("the cache cannot be read").caused_by(error)
}
