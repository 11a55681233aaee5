//! Copies a project into a sandbox: read on the host without following any link, sent as an archive, unpacked inside.
//!
//! Nothing is written on the host, so that nothing has to be removed there, whatever ends this process; the copy lives
//! in the sandbox's own memory and goes with it. Links are copied as links; inside they lead nowhere outside of it.

mod archive;
mod walk;

use std::io::{BufWriter, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_core::{AllowedRoot, Command, WORKSPACE, bytes};
use tokio::io::AsyncReadExt as _;

use super::phase::{Phase, StartFailure};
use crate::server_sandbox::{Cell, Ended};
use archive::Archive;

/// What is not part of a project but made from it, or kept beside it.
const LEFT_OUT: [&str; 8] =
    [".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".venv", "venv", "node_modules"];

/// How much of a project may be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) bytes: u64,
    pub(crate) files: u64,
}

impl Bounds {
    /// What leaves a server room to work in a workspace of this size.
    pub(crate) fn of(workspace: &ringfence_core::Workspace) -> Self {
        Self { bytes: workspace.bytes / 4 * 3, files: workspace.inodes / 4 * 3 }
    }
}

/// Why a project was not copied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StageError {
    #[error("{} is larger than {}, which is what fits into the server's workspace", path.display(), bytes::format(*most))]
    TooLarge { path: PathBuf, most: u64 },
    #[error("{} has more than {most} files, which is what fits into the server's workspace", path.display())]
    TooMany { path: PathBuf, most: u64 },
    #[error("{} is nested too deeply", path.display())]
    TooDeep { path: PathBuf },
    #[error("{} cannot be read: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("the sandbox does not take the copy: {0}")]
    NotTaken(std::io::Error),
}

impl StageError {
    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::TooLarge { .. } | Self::TooMany { .. } | Self::TooDeep { .. } => Some(
                "name a smaller `host_path` in the entry's box, raise its `memory_mb`, or mount the directory with `host_path_mode = \"rw\"`",
            ),
            Self::Unreadable { .. } => Some("let the user who runs ringfence read it, or leave it out of `host_path`"),
            Self::NotTaken(_) => None,
        }
    }
}

/// A project, and where it shall be inside.
#[derive(Debug, Clone)]
pub(crate) struct Project {
    /// None to make only the place.
    pub(crate) host: Option<PathBuf>,
    /// The directory of the host that it must lie in, if it is bound to one.
    pub(crate) within: Option<AllowedRoot>,
    /// Beneath the workspace.
    pub(crate) guest: PathBuf,
    /// A link to make in it, in place of what was left out.
    pub(crate) link: Option<(PathBuf, PathBuf)>,
}

/// How long an unpacker may take to end once it has read everything.
const PATIENCE: Duration = Duration::from_secs(30);

/// Copies it. Whoever waits for this sets the deadline; when the cell ends, so does the copy.
pub(crate) async fn copy_in(cell: &Cell, project: &Project, bounds: Bounds) -> Result<(), StartFailure> {
    let failed = |message: String| StartFailure::lasting(Phase::SessionCreate, message);
    let argv = ["tar", "-x", "-f", "-", "-C", WORKSPACE].map(Into::into).to_vec();
    let environment = [("PATH".to_owned(), ringfence_core::PATH.to_owned())].into();
    let inmate = cell.start(&Command { argv, workdir: WORKSPACE.into() }, &environment)?;
    let mut handle = inmate.handle();
    // Else a copy that nobody waits for would go on in a sandbox that others live in.
    let _unpacker = cell.kill_at_last(&handle);
    handle.started().await.map_err(|why| {
        failed(format!("the project cannot be copied into the sandbox: tar: {why}"))
            .hint("install `tar` where the sandbox finds it, in the host's /usr/bin or in the entry's image")
    })?;
    let into = inmate.stdin.into_blocking_fd().map_err(|error| failed(error.to_string()))?;
    let (from, bounds_of_it) = (project.clone(), bounds);
    let sent = tokio::task::spawn_blocking(move || send(&from, into, bounds_of_it));
    let mut complaints = String::new();
    let mut stderr = inmate.stderr.take(2000);
    let (sent, _) = tokio::join!(sent, stderr.read_to_string(&mut complaints));
    let sent = sent.map_err(|error| failed(error.to_string()))?;
    let ended = tokio::time::timeout(PATIENCE, handle.ended()).await.ok();
    match (sent, ended) {
        (Ok(()), Some(Ended::Exited(0))) => Ok(()),
        // What the unpacker says tells more than that it no longer reads.
        (Ok(()) | Err(StageError::NotTaken(_)), ended) => {
            let how = ended.map_or_else(|| "did not end".into(), |ended| ended.to_string());
            Err(failed(format!("the project cannot be copied into the sandbox: tar {how}: {}", complaints.trim()))
                .hint("raise `memory_mb` in the entry's box if the copy does not fit"))
        }
        (Err(error), _) => {
            let failure = failed(error.to_string());
            Err(error.hint().into_iter().fold(failure, StartFailure::hint))
        }
    }
}

fn send(project: &Project, into: OwnedFd, bounds: Bounds) -> Result<(), StageError> {
    let top = project.guest.strip_prefix(WORKSPACE).unwrap_or(Path::new(""));
    let mut archive = Archive::new(BufWriter::with_capacity(64 << 10, std::fs::File::from(into)));
    let mut directory = PathBuf::new();
    for part in top.components() {
        directory.push(part);
        archive.directory(&directory, 0o755).map_err(StageError::NotTaken)?;
    }
    if let Some(host) = &project.host {
        walk::Walk::new(host, project, bounds).copy(&mut archive, top)?;
    }
    if let Some((name, target)) = &project.link {
        archive.link(&top.join(name), target).map_err(StageError::NotTaken)?;
    }
    archive.finish().and_then(|mut sink| sink.flush()).map_err(StageError::NotTaken)
}

#[cfg(test)]
mod tests;
