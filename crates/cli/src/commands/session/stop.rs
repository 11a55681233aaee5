//! `ringfence session stop ID…`.

use std::process::ExitCode;

use clap::Args;

use crate::failure::Failure;
use crate::operator_client::find_session;
use crate::output::print;

/// Stop sessions and free their resources.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The ids of the sessions, or unique prefixes of them
    #[arg(required = true)]
    ids: Vec<String>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    for id in &arguments.ids {
        let stopped = find_session(id)?.request("DELETE", "", None)?;
        print(&format!("stopped {}\n", stopped["session_id"].as_str().unwrap_or_default()))?;
    }
    Ok(ExitCode::SUCCESS)
}
