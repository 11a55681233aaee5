//! Copies a project into a sandbox: read on the host without following links, sent as a tar archive, unpacked inside.
//!
//! Nothing is written on the host, so nothing has to be removed there however this process ends. The copy is in the
//! sandbox's tmpfs and is freed with it. Symbolic links are copied as links; inside the sandbox they cannot lead out of
//! it.

mod archive;
mod walk;

use std::io::{BufWriter, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_core::{AllowedRoot, Command, WORKSPACE, bytes};
use tokio::io::AsyncReadExt as _;

use crate::phase::{Phase, StartFailure};
use crate::server_sandbox::{ProcessExit, ServerSandbox};
use archive::Archive;

/// Directories that are generated from a project or stored beside it, and are not copied.
const EXCLUDED_NAMES: [&str; 8] =
    [".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".venv", "venv", "node_modules"];

/// Time for `tar` to exit after it has read the whole archive.
const TAR_EXIT_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopyLimits {
    pub(crate) bytes: u64,
    pub(crate) files: u64,
}

impl CopyLimits {
    /// Three quarters of a workspace: the rest is for the files that the server writes.
    pub(crate) fn of(workspace: &ringfence_core::Workspace) -> Self {
        Self { bytes: workspace.bytes / 4 * 3, files: workspace.inodes / 4 * 3 }
    }
}

/// The reason why a project was not copied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StagingError {
    #[error("{} is larger than {}, the limit for a copy in the server's workspace", path.display(), bytes::format(*limit))]
    TooManyBytes { path: PathBuf, limit: u64 },
    #[error("{} has more than {limit} files, the limit for a copy in the server's workspace", path.display())]
    TooManyFiles { path: PathBuf, limit: u64 },
    #[error("{} is nested too deeply", path.display())]
    TooDeep { path: PathBuf },
    #[error("{} cannot be read: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("the copy cannot be sent to the sandbox: {0}")]
    SendFailed(std::io::Error),
}

impl StagingError {
    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::TooManyBytes { .. } | Self::TooManyFiles { .. } | Self::TooDeep { .. } => Some(
                "set `host_path` in the entry's box to a smaller directory, raise `memory_mb`, or mount the directory with `host_path_mode = \"rw\"`",
            ),
            Self::Unreadable { .. } => {
                Some("make it readable for the user who runs ringfence, or set `host_path` to a directory without it")
            }
            Self::SendFailed(_) => None,
        }
    }
}

/// A project to copy.
#[derive(Debug, Clone)]
pub(crate) struct Project {
    /// The directory on the host. With `None`, only the directory inside is created.
    pub(crate) host: Option<PathBuf>,
    /// The allowed root that must contain it, if a scope confines the server.
    pub(crate) allowed_root: Option<AllowedRoot>,
    /// The directory inside, beneath the workspace.
    pub(crate) guest: PathBuf,
    /// A symbolic link to create in it, as path and target.
    pub(crate) link: Option<(PathBuf, PathBuf)>,
}

/// Copies a project into a sandbox. The caller sets the deadline; dropping the future or the sandbox ends the copy.
pub(crate) async fn copy_in(
    sandbox: &ServerSandbox,
    project: &Project,
    limits: CopyLimits,
) -> Result<(), StartFailure> {
    let failed = |message: String| StartFailure::permanent(Phase::SessionCreate, message);
    let argv = ["tar", "-x", "-f", "-", "-C", WORKSPACE].map(Into::into).to_vec();
    let environment = [("PATH".to_owned(), ringfence_core::PATH.to_owned())].into();
    let tar = sandbox.start(&Command { argv, workdir: WORKSPACE.into() }, &environment)?;
    let mut handle = tar.handle();
    // A shared sandbox outlives a cancelled copy.
    let _kill_on_drop = sandbox.kill_on_drop(&handle);
    handle.wait_until_started().await.map_err(|reason| {
        failed(format!("the project cannot be copied into the sandbox: tar cannot be started: {reason}"))
            .hint("install `tar` in the host's /usr/bin, or in the image of the entry")
    })?;
    let stdin = tar.stdin.into_blocking_fd().map_err(|error| failed(error.to_string()))?;
    let source = project.clone();
    let sent = tokio::task::spawn_blocking(move || send(&source, stdin, limits));
    let mut messages = String::new();
    let mut stderr = tar.stderr.take(2000);
    let (sent, _) = tokio::join!(sent, stderr.read_to_string(&mut messages));
    let sent = sent.map_err(|error| failed(error.to_string()))?;
    let exit = tokio::time::timeout(TAR_EXIT_TIMEOUT, handle.wait_for_exit()).await.ok();
    match (sent, exit) {
        (Ok(()), Some(ProcessExit::Exited(0))) => Ok(()),
        // The messages of tar say more than the broken pipe.
        (Ok(()) | Err(StagingError::SendFailed(_)), exit) => {
            let exit = exit.map_or_else(|| "did not exit".into(), |exit| exit.to_string());
            Err(failed(format!("the project cannot be copied into the sandbox: tar {exit}: {}", messages.trim()))
                .hint("raise `memory_mb` in the entry's box if the copy does not fit"))
        }
        (Err(error), _) => {
            let failure = failed(error.to_string());
            Err(error.hint().into_iter().fold(failure, StartFailure::hint))
        }
    }
}

fn send(project: &Project, into: OwnedFd, limits: CopyLimits) -> Result<(), StagingError> {
    let top = project.guest.strip_prefix(WORKSPACE).unwrap_or(Path::new(""));
    let mut archive = Archive::new(BufWriter::with_capacity(64 << 10, std::fs::File::from(into)));
    let mut directory = PathBuf::new();
    for part in top.components() {
        directory.push(part);
        archive.directory(&directory, 0o755).map_err(StagingError::SendFailed)?;
    }
    if let Some(host) = &project.host {
        walk::Walk::new(host, project, limits).copy(&mut archive, top)?;
    }
    if let Some((name, target)) = &project.link {
        archive.link(&top.join(name), target).map_err(StagingError::SendFailed)?;
    }
    archive.finish().and_then(|mut sink| sink.flush()).map_err(StagingError::SendFailed)
}

#[cfg(test)]
mod tests;
