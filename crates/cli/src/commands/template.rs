//! `ringfence template`: the templates of sessions, and the packages that they have. No server needs to run.

mod build;
mod list;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use ringfence_config::{Configuration, ProtectedPaths, Secrets};
use ringfence_servers::{Host, StartFailure, guest_writable};
use ringfence_store::Audit;
use tokio::runtime::Runtime;

use super::serve::hosting;
use crate::failure::Failure;
use crate::self_exe::SELF_EXE;
use crate::{configuration, database};

/// List the templates of sessions, or install their packages.
///
/// The packages of a template are installed when a session first uses it. `build` installs them in advance.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    List(list::Arguments),
    Build(build::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        Command::List(arguments) => list::run(arguments),
        Command::Build(arguments) => build::run(arguments),
    }
}

/// Builds templates.
struct Builder {
    configuration: Configuration,
    host: Host,
    runtime: Runtime,
}

impl Builder {
    fn open(config: Option<&PathBuf>) -> Result<Self, Failure> {
        let configuration = configuration::load(config.cloned(), Vec::new())?;
        let (store, _) = database::open(&configuration.state_directory()?)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| Failure::new("cannot start").caused_by(&error))?;
        let writable = runtime.block_on(guest_writable(&configuration, &configuration.sessions.volumes, &store));
        let paths = ProtectedPaths::default();
        // Sandboxes that build packages have no secrets.
        let secrets = Secrets::default();
        let host = hosting::host(&configuration, SELF_EXE.into(), writable, Audit::disabled(), None, paths, secrets)?;
        Ok(Self { configuration, host, runtime })
    }
}

fn failed(message: String, failure: StartFailure) -> Failure {
    let shown = Failure::new(message).caused_by(&failure);
    failure.hints.into_iter().fold(shown, Failure::hint)
}
