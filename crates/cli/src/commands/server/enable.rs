//! `ringfence server enable NAME…`, and what `disable` shares with it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::registry::Registry;
use crate::commands::session::print;
use crate::failure::Failure;

/// Start servers, now and whenever ringfence starts.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The servers' names
    #[arg(required = true, value_name = "NAME")]
    pub(super) names: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Switch {
    On,
    Off,
}

pub(super) fn run(names: &[String], switch: Switch, config: Option<&PathBuf>) -> Result<ExitCode, Failure> {
    let registry = Registry::open(config)?;
    for name in names {
        if !registry.wait(registry.store.enable_server(name, switch == Switch::On))? {
            return Err(registry.missing(name));
        }
        let done = if switch == Switch::On { "enabled" } else { "disabled" };
        print(&format!("{done} {name}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}
