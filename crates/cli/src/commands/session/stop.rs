//! `ringfence session stop ID…`.

use std::process::ExitCode;

use clap::Args;

use super::print;
use crate::failure::Failure;
use crate::operator;

/// End sessions and free all they hold.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The sessions' ids, or how they begin
    #[arg(required = true)]
    ids: Vec<String>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    for id in &arguments.ids {
        let stopped = operator::find(id)?.ask("DELETE", "", None)?;
        print(&format!("stopped {}\n", stopped["session_id"].as_str().unwrap_or_default()))?;
    }
    Ok(ExitCode::SUCCESS)
}
