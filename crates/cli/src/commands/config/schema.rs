//! `ringfence config schema`.

use std::process::ExitCode;

use crate::failure::Failure;
use crate::output::print;

pub(super) fn run() -> Result<ExitCode, Failure> {
    print(&format!("{:#}\n", ringfence_config::schema()))
}
