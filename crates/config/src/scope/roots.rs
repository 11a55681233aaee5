//! The directories of the host that the sandboxes of a run may mount, and the one that they may write.
//!
//! A volume is bound to its root here. That it lies in the root is checked here and again by the sandbox at each mount,
//! on the descriptor that is mounted.

use std::path::{Path, PathBuf};

use ringfence_core::{Access, AllowedRoot, Volume, WORKSPACE};

/// The directory in the workspace where a parallel worker finds its artifacts, unless a volume already contains them.
const ARTIFACTS: &str = "artifacts";

/// A path of the host that a scope does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the scope does not allow {}: {problem}", path.display())]
pub struct OutsideAllowedRoots {
    path: PathBuf,
    problem: String,
}

impl OutsideAllowedRoots {
    pub const HINT: &str = "add the real path of its directory to allowed_roots of the scope, or do not mount it";
}

/// The directories of the host that a scope allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confinement {
    roots: Vec<AllowedRoot>,
    writable: Writable,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Writable {
    /// All volumes that are configured as read-write.
    AsConfigured,
    /// Only the artifact directory of a parallel worker, if it has one.
    Only(Option<AllowedRoot>),
}

impl Confinement {
    pub(super) fn new(roots: Vec<AllowedRoot>) -> Self {
        Self { roots, writable: Writable::AsConfigured }
    }

    pub(super) fn of_parallel_worker(roots: Vec<AllowedRoot>, artifacts: Option<AllowedRoot>) -> Self {
        Self { roots, writable: Writable::Only(artifacts) }
    }

    /// Returns the root that contains a path, which must exist.
    pub fn find_root(&self, path: &Path) -> Result<AllowedRoot, OutsideAllowedRoots> {
        let refused = |problem| OutsideAllowedRoots { path: path.to_owned(), problem };
        let containing = self.roots.iter().filter(|root| root.contains_path(path));
        // The innermost root is the most precise.
        let root = containing.max_by_key(|root| root.path().components().count());
        let root = root.ok_or_else(|| refused("it lies in none of the allowed roots".into()))?;
        root.open(path).map_err(|errno| refused(root.explain(errno)))?;
        Ok(root.clone())
    }

    /// Binds a volume to its root, and makes it read-only if the scope does not allow writing it.
    pub fn confine(&self, volume: &mut Volume) -> Result<(), OutsideAllowedRoots> {
        volume.allowed_root = Some(self.find_root(&volume.host)?);
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

    /// Returns the volumes of sessions: the configured ones, and the artifact directory of a parallel worker.
    pub fn session_volumes(&self, mut volumes: Vec<Volume>) -> Result<Vec<Volume>, OutsideAllowedRoots> {
        for volume in &mut volumes {
            self.confine(volume)?;
        }
        if let Writable::Only(Some(artifacts)) = &self.writable {
            let guest = artifacts_mount_point(artifacts.path(), &volumes);
            let is_writable = |volume: &Volume| volume.access == Access::ReadWrite && volume.guest == guest;
            if !volumes.iter().any(is_writable) {
                let artifacts_volume = Volume {
                    host: artifacts.path().to_owned(),
                    guest,
                    access: Access::ReadWrite,
                    allowed_root: Some(artifacts.clone()),
                };
                volumes.retain(|volume| volume.guest != artifacts_volume.guest);
                volumes.push(artifacts_volume);
            }
        }
        Ok(volumes)
    }
}

/// Returns the path at which a volume already shows the artifacts, or a separate path in the workspace.
fn artifacts_mount_point(artifacts: &Path, volumes: &[Volume]) -> PathBuf {
    let in_volume = volumes.iter().find_map(|volume| {
        let below = artifacts.strip_prefix(&volume.host).ok()?;
        Some(if below.as_os_str().is_empty() { volume.guest.clone() } else { volume.guest.join(below) })
    });
    in_volume.unwrap_or_else(|| Path::new(WORKSPACE).join(ARTIFACTS))
}
