//! Paths of the programs that take part: the `ringfence` to measure, and this program for its other roles.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

const RINGFENCE: &str = "ringfence";

/// No ringfence program to measure was found.
#[derive(Debug)]
pub(crate) enum RingfenceNotFound {
    /// The path that was given does not name a file.
    At(PathBuf),
    Anywhere,
}

impl RingfenceNotFound {
    pub(crate) const HINT: &str =
        "build it with `cargo build --release -p ringfence`, or name its file with --program PATH";
}

impl std::fmt::Display for RingfenceNotFound {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::At(path) => write!(formatter, "program not found: {}", path.display()),
            Self::Anywhere => {
                write!(formatter, "the program `{RINGFENCE}` is neither beside ringfence-bench nor on PATH")
            }
        }
    }
}

impl std::error::Error for RingfenceNotFound {}

/// Returns the program that was given, else the one beside this program, else the one on PATH.
pub(crate) fn find_ringfence(given: Option<PathBuf>) -> Result<PathBuf> {
    if let Some(path) = given {
        // Its servers are started in other directories.
        return path.canonicalize().map_err(|_| RingfenceNotFound::At(path).into());
    }
    let beside = own_path()?.with_file_name(RINGFENCE);
    let found = if beside.is_file() { Some(beside) } else { find_on_path(RINGFENCE) };
    found.ok_or_else(|| RingfenceNotFound::Anywhere.into())
}

/// Returns the program in the first directory of PATH that has it. Relative directories are ignored.
pub(crate) fn find_on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let directories = std::env::split_paths(&path).filter(|directory| directory.is_absolute());
    directories.map(|directory| directory.join(name)).find(|program| program.is_file())
}

/// The file of this program.
pub(crate) fn own_path() -> Result<PathBuf> {
    std::env::current_exe().context("cannot determine the path of ringfence-bench")
}

/// A copy of this program alone in a temporary directory. A hosted server is staged into its sandbox with all files of
/// its directory, so the build directory would be staged too.
pub(crate) struct OwnCopy {
    path: PathBuf,
    _directory: TempDir,
}

impl OwnCopy {
    pub(crate) fn create() -> Result<Self> {
        let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
        let path = directory.path().join("ringfence-bench");
        std::fs::copy(own_path()?, &path).context("cannot copy ringfence-bench")?;
        Ok(Self { path, _directory: directory })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_program_must_exist() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ringfence");
        let error = find_ringfence(Some(path.clone())).unwrap_err();
        assert_eq!(error.to_string(), format!("program not found: {}", path.display()));
        std::fs::write(&path, "").unwrap();
        assert_eq!(find_ringfence(Some(path.clone())).unwrap(), path.canonicalize().unwrap());
    }
}
