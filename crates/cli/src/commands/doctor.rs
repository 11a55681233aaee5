//! `ringfence doctor`.
use std::process::ExitCode;
use clap::Args;
use crate::failure::Failure;
/// Check every protection of this host.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}
pub(crate) fn run(_arguments: &Arguments) -> Result<ExitCode, Failure> {
    Err(Failure::new("not there"))
}
