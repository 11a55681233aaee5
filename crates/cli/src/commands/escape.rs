//! x
use std::process::ExitCode;
use crate::failure::Failure;
pub(crate) fn run() -> Result<ExitCode, Failure> {
    Err(Failure::new("not there"))
}
