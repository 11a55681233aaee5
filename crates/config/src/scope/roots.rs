//! The directories of the host that a run may be shown, and the one that it may write.
//!
//! A volume is bound to its root here, by name; that it lies there is seen now and each time it is mounted, by the
//! sandbox, from the descriptor that is mounted.

use std::path::{Path, PathBuf};

use ringfence_core::{Access, AllowedRoot, Volume, WORKSPACE};

/// Where a parallel worker finds its directory, unless a volume shows it already.
const ARTIFACTS: &str = "artifacts";

/// Something of the host that a scope does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is outside of what the scope allows: {problem}", path.display())]
pub struct OutOfRoots {
    path: PathBuf,
    problem: String,
}

impl OutOfRoots {
    pub const HINT: &str = "add the real path of its directory to allowed_roots of the scope, or leave it out";
}

/// What of the host is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confinement {
    roots: Vec<AllowedRoot>,
    writable: Writable,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Writable {
    /// Whatever is shown to be written.
    AsGiven,
    /// Nothing but this, of a worker beside which others work.
    Only(Option<AllowedRoot>),
}

impl Confinement {
    pub(super) fn new(roots: Vec<AllowedRoot>) -> Self {
        Self { roots, writable: Writable::AsGiven }
    }

    pub(super) fn of_parallel_worker(roots: Vec<AllowedRoot>, artifacts: Option<AllowedRoot>) -> Self {
        Self { roots, writable: Writable::Only(artifacts) }
    }

    /// The root in which something lies now.
    pub fn find(&self, path: &Path) -> Result<AllowedRoot, OutOfRoots> {
        let refused = |problem| OutOfRoots { path: path.to_owned(), problem };
        let around = self.roots.iter().filter(|root| root.contains_path(path));
        // The innermost says most of where it is.
        let root = around.max_by_key(|root| root.path().components().count());
        let root = root.ok_or_else(|| refused("it lies in none of the allowed roots".into()))?;
        root.open(path).map_err(|errno| refused(root.explain(errno)))?;
        Ok(root.clone())
    }

    /// Binds a volume to its root, and takes from it what may not be written.
    pub fn confine(&self, volume: &mut Volume) -> Result<(), OutOfRoots> {
        volume.allowed_root = Some(self.find(&volume.host)?);
        if let Writable::Only(artifacts) = &self.writable
            && volume.access == Access::ReadWrite
        {
            match artifacts.as_ref().filter(|artifacts| artifacts.contains_path(&volume.host)) {
                Some(artifacts) => volume.allowed_root = Some(artifacts.clone()),
                None => volume.access = Access::ReadOnly,
            }
        }
        Ok(())
    }

    /// The volumes of sessions: those that are given, and a parallel worker's own directory.
    pub fn session_volumes(&self, mut volumes: Vec<Volume>) -> Result<Vec<Volume>, OutOfRoots> {
        for volume in &mut volumes {
            self.confine(volume)?;
        }
        if let Writable::Only(Some(artifacts)) = &self.writable {
            let guest = place(artifacts.path(), &volumes);
            let is_writable = |volume: &Volume| volume.access == Access::ReadWrite && volume.guest == guest;
            if !volumes.iter().any(is_writable) {
                let own = Volume {
                    host: artifacts.path().to_owned(),
                    guest,
                    access: Access::ReadWrite,
                    allowed_root: Some(artifacts.clone()),
                };
                volumes.retain(|volume| volume.guest != own.guest);
                volumes.push(own);
            }
        }
        Ok(volumes)
    }
}

/// Where it is within what is shown already, or a place of its own.
fn place(artifacts: &Path, volumes: &[Volume]) -> PathBuf {
    let shown = volumes.iter().find_map(|volume| {
        let below = artifacts.strip_prefix(&volume.host).ok()?;
        Some(if below.as_os_str().is_empty() { volume.guest.clone() } else { volume.guest.join(below) })
    });
    shown.unwrap_or_else(|| Path::new(WORKSPACE).join(ARTIFACTS))
}
