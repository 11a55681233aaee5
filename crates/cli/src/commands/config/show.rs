//! `ringfence config show`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::configuration::load;
use crate::database;
use crate::failure::Failure;
use crate::output::print;

/// Print every value and its source; secrets are not shown.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let configuration = load(arguments.config, Vec::new())?;
    if let Ok(state) = configuration.state_directory() {
        database::show_reports(&state);
    }
    print(&if arguments.json { format!("{:#}\n", configuration.show_json()) } else { configuration.show() })
}
