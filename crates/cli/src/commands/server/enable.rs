//! `ringfence server enable NAME…`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::registry::{Registry, Switch};
use crate::failure::Failure;

/// Start servers now, and whenever ringfence starts.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The names of the servers
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

pub(super) fn run(arguments: &Arguments, config: Option<&PathBuf>) -> Result<ExitCode, Failure> {
    Registry::open(config)?.switch(&arguments.names, Switch::On)
}
