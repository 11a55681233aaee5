//! The interpreters that sandboxes use, as they are on this host: what is installed for one is not for another.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;

use crate::{interpreter, template};

/// For one of the host's own tools to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// The most that is read of an answer.
const MOST_BYTES: usize = 1 << 20;

/// Where a program is that a sandbox with the host's `/usr` finds by this name.
pub(super) fn path_of(name: &str) -> Option<PathBuf> {
    if let Some(found) = interpreter::find(name) {
        return Some(found.directory.join(name));
    }
    template::PATH.split(':').map(|directory| Path::new(directory).join(name)).find(|path| path.is_file())
}

/// What it says of its version.
pub(super) async fn version_of(name: &str) -> Option<String> {
    let path = path_of(name)?;
    let version = ask(&path, &["--version"]).await?;
    Some(format!("{} {}", path.display(), version.trim()))
}

/// Runs a tool of the host's, away from any project, and gives what it prints.
pub(super) async fn ask(program: &Path, args: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    command.args(args).current_dir("/").stdin(std::process::Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await.ok()?.ok()?;
    (output.status.success() && output.stdout.len() <= MOST_BYTES).then_some(())?;
    String::from_utf8(output.stdout).ok()
}
