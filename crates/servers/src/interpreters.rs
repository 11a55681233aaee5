//! The interpreters that sandboxes use, as they are on this host: packages for one do not fit another.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use super::phase::{Phase, StartFailure};
use ringfence_backend::interpreter;
use ringfence_config::{GuestWritable, GuestWritten};

/// Timeout for an interpreter to print its version.
const TIMEOUT: Duration = Duration::from_secs(30);

const MAX_OUTPUT_BYTES: usize = 64 << 10;

/// Where a program is that a sandbox with the host's `/usr` finds by this name.
pub(crate) fn path_of(name: &str) -> Option<PathBuf> {
    if let Some(found) = interpreter::find(name) {
        return Some(found.directory.join(name));
    }
    ringfence_core::PATH.split(':').map(|directory| Path::new(directory).join(name)).find(|path| path.is_file())
}

/// The path and version of an interpreter. The host executes it, so it must be one that no guest could have written.
pub(crate) async fn version_of(name: &str, writable: &GuestWritable) -> Result<String, StartFailure> {
    let missing = || {
        StartFailure::lasting(Phase::DepInstall, format!("there is no {name} that a sandbox can use"))
            .hint(format!("install {name} on this host"))
    };
    let path = path_of(name).ok_or_else(missing)?;
    for part in interpreter::executed_parts(&path) {
        writable.check_tree(&part).map_err(|error| not_executed(&path, &error))?;
    }
    let version = print_version(&path).await.ok_or_else(missing)?;
    Ok(format!("{} {}", path.display(), version.trim()))
}

pub(crate) fn not_executed(program: &Path, error: &GuestWritten) -> StartFailure {
    StartFailure::lasting(Phase::DepInstall, format!("{} is not used: {error}", program.display()))
        .hint(GuestWritten::HINT)
}

async fn print_version(program: &Path) -> Option<String> {
    let mut command = Command::new(program);
    command.arg("--version").env_clear().current_dir("/").stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(TIMEOUT, command.output()).await.ok()?.ok()?;
    (output.status.success() && output.stdout.len() <= MAX_OUTPUT_BYTES).then_some(())?;
    String::from_utf8(output.stdout).ok()
}
