//! The role of a worker: the server process that `ringfence up` starts and replaces.

use std::process::ExitCode;

use ringfence_config::SCOPE_FILE_VARIABLE;

use super::Arguments;
use crate::commands::serve;
use crate::failure::Failure;
use crate::self_exe::set_process_name;

/// First argument of this program in the role of a worker. The options are those of `up`.
pub(crate) const ROLE: &str = "worker";

pub(crate) fn run(mut arguments: Box<Arguments>) -> Result<ExitCode, Failure> {
    set_process_name();
    // The supervisor names the scope file in the variable, and removes it after the last worker has read it.
    if arguments.serve.scope.take().is_some() && std::env::var_os(SCOPE_FILE_VARIABLE).is_none() {
        return Err(Failure::new(format!("a worker with --scope needs {SCOPE_FILE_VARIABLE}"))
            .hint("workers are started by `ringfence up`; to serve without a supervisor, use `ringfence serve`"));
    }
    serve::run(&arguments.serve)
}
