//! The host's interpreters that sandboxes use. Their versions are part of the cache key, because packages that were
//! installed for one interpreter do not work with another.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::phase::{Phase, StartFailure};
use ringfence_backend::interpreter;
use ringfence_config::{GuestWritable, GuestWritten};

/// Timeout for an interpreter to print its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(30);

const MAX_OUTPUT_BYTES: usize = 64 << 10;

/// Returns the host's path of the program that a sandbox without an image finds by this name.
pub(super) fn path_of(name: &str) -> Option<PathBuf> {
    if let Some(found) = interpreter::find(name) {
        return Some(found.directory.join(name));
    }
    ringfence_core::PATH.split(':').map(|directory| Path::new(directory).join(name)).find(|path| path.is_file())
}

/// Returns the path and version of an interpreter. The host executes it, so it is refused if guests could have written
/// it.
pub(super) async fn path_and_version(name: &str, writable: &GuestWritable) -> Result<String, StartFailure> {
    let missing = || {
        StartFailure::permanent(
            Phase::DepInstall,
            format!("{name} was not found on this host, or sandboxes cannot use it"),
        )
        .hint(format!("install {name} on this host, for example with its package manager"))
    };
    let path = path_of(name).ok_or_else(missing)?;
    for part in interpreter::executed_parts(&path) {
        writable.check_tree(&part).map_err(|error| refused(&path, &error))?;
    }
    let version = print_version(&path).await.ok_or_else(missing)?;
    Ok(format!("{} {}", path.display(), version.trim()))
}

pub(super) fn refused(program: &Path, error: &GuestWritten) -> StartFailure {
    StartFailure::permanent(Phase::DepInstall, format!("{} cannot be used: {error}", program.display()))
        .hint(GuestWritten::HINT)
}

async fn print_version(program: &Path) -> Option<String> {
    let mut command = Command::new(program);
    command.arg("--version").env_clear().current_dir("/").stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(VERSION_TIMEOUT, command.output()).await.ok()?.ok()?;
    (output.status.success() && output.stdout.len() <= MAX_OUTPUT_BYTES).then_some(())?;
    String::from_utf8(output.stdout).ok()
}
