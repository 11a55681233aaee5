//! `ringfence bench`: executes the benchmark, which is the separate program `ringfence-bench`.
//!
//! Arguments are parsed here first: `--help` and usage errors do not need that program.

/// The command line of `ringfence-bench`.
#[path = "../../../bench/src/arguments.rs"]
mod arguments;

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use ringfence_config::{GuestWritable, GuestWritten};
use ringfence_servers::read_write_volumes;

use super::server::registry::Registry;
use crate::configuration::load;
use crate::database;
use crate::failure::Failure;

pub(crate) use arguments::Arguments;

const PROGRAM: &str = "ringfence-bench";

/// Replaces this process with the benchmark of this program. Returns only on failure.
pub(crate) fn run() -> Result<ExitCode, Failure> {
    let ringfence = std::env::current_exe()
        .map_err(|error| Failure::new("cannot determine the path of this program").caused_by(&error))?;
    let program = find(&ringfence).ok_or_else(|| {
        Failure::new(format!("the benchmark program `{PROGRAM}` is not installed")).hint(format!(
            "build it with `cargo build --release -p {PROGRAM}`, then copy it beside `ringfence` or to a directory on PATH"
        ))
    })?;
    check_not_guest_writable(&program)?;
    // The first two arguments are the name of this program and `bench`.
    let arguments = std::env::args_os().skip(2);
    let error = Command::new(&program).arg("--program").arg(ringfence).args(arguments).exec();
    Err(Failure::new(format!("cannot execute {}", program.display())).caused_by(&error))
}

/// Returns the benchmark program beside this program, else on PATH. Relative directories on PATH are ignored.
fn find(ringfence: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).filter(|directory| directory.is_absolute());
    let on_path = on_path.map(|directory| directory.join(PROGRAM));
    std::iter::once(ringfence.with_file_name(PROGRAM)).chain(on_path).find(|program| is_executable(program))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Refuses a program in a read-write volume of sessions or hosted servers: a guest could have written it.
fn check_not_guest_writable(program: &Path) -> Result<(), Failure> {
    let configuration = load(None, Vec::new())?;
    let has_store = configuration.state_directory().is_ok_and(|state| database::exists(&state));
    let writable = if has_store {
        Registry::open(None)?.guest_writable()
    } else {
        // Opening the store would create it.
        let writable = GuestWritable::from_volumes(&configuration.sessions.volumes);
        for server in &configuration.servers {
            // Nothing is registered as executed, so no volume is refused.
            let _ = writable.add(&read_write_volumes(&server.entry));
        }
        writable
    };
    writable.check(program).map_err(|error| {
        Failure::new(format!("{} is not executed", program.display())).caused_by(&error).hint(GuestWritten::HINT)
    })
}
