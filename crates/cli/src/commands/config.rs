//! `ringfence config`: what the configuration comes to, and what it may hold.
#![allow(clippy::doc_markdown)] // the comments on arguments are what `--help` shows

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use ringfence_config::{Configuration, Environment, Flag, Sources};

use crate::damage;
use crate::failure::Failure;

/// Show the configuration.
///
/// It is the file given by --config, else ringfence.toml here, else ringfence/ringfence.toml in $XDG_CONFIG_HOME
/// (~/.config). A flag is stronger than a variable, and that than the file. Every key has a variable: RINGFENCE_ and
/// the key in capitals, with _ for each dot, such as RINGFENCE_SESSIONS_TIMEOUT_S.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Every value, and where it came from; secrets are not shown
    Show {
        /// The configuration file
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// The JSON Schema of the file
    Schema,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let text = match arguments.command {
        Command::Show { config, json } => {
            let configuration = load(config, Vec::new())?;
            if let Ok(state) = configuration.state_directory() {
                damage::show_reports(&state);
            }
            if json { format!("{:#}\n", configuration.show_json()) } else { configuration.show() }
        }
        Command::Schema => format!("{:#}\n", ringfence_config::schema()),
    };
    let written = anstream::stdout().write_all(text.as_bytes());
    written.map_err(|error| Failure::new("cannot write to standard output").because(&error))?;
    Ok(ExitCode::SUCCESS)
}

/// The configuration of this process with these flags.
pub(crate) fn load(file: Option<PathBuf>, flags: Vec<Flag>) -> Result<Configuration, Failure> {
    ringfence_config::load(&sources(file, flags)).map_err(Failure::from)
}

/// What the configuration of this process is made from.
pub(crate) fn sources(file: Option<PathBuf>, flags: Vec<Flag>) -> Sources {
    let environment = Environment::of_process();
    let named = environment.get(ringfence_config::FILE_VARIABLE).filter(|path| !path.is_empty());
    Sources { file: file.or_else(|| named.map(PathBuf::from)), environment, flags }
}
