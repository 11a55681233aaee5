//! `ringfence server remove NAME…`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::registry::Registry;
use crate::failure::Failure;
use crate::output::print;

/// Remove servers and their pins.
///
/// A running server is stopped within a second.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The names of the servers
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

pub(super) fn run(arguments: &Arguments, config: Option<&PathBuf>) -> Result<ExitCode, Failure> {
    let registry = Registry::open(config)?;
    for name in &arguments.names {
        if !registry.wait(registry.store.remove_server(name))? {
            return Err(registry.not_in_store(name));
        }
        print(&format!("removed {name}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}
