//! `ringfence server remove NAME…`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::registry::Registry;
use crate::commands::session::print;
use crate::failure::Failure;

/// Forget servers, and what was accepted of their tools.
///
/// One that runs is stopped within a second.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The servers' names
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

pub(super) fn run(arguments: &Arguments, config: Option<&PathBuf>) -> Result<ExitCode, Failure> {
    let registry = Registry::open(config)?;
    for name in &arguments.names {
        if !registry.wait(registry.store.remove_server(name))? {
            return Err(registry.missing(name));
        }
        print(&format!("removed {name}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}
