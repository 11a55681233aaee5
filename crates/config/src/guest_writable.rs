//! The paths that guests may write. The host must neither execute such files nor read settings from them.
//!
//! `GuestWritable` is the set of this process; `VolumeRecord` stores the read-write volumes for later processes.
//!
//! A path counts as written by guests if it, or any symbolic link on the way to it, lies in a volume that a guest has
//! read-write. The file need not exist: a path counts if a guest can create it. The set only grows, because files that
//! a guest wrote remain after the guest has ended.

mod paths;
mod volume_record;

use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};

use ringfence_core::sync::Mutex;
use ringfence_core::{Access, Volume};

pub(crate) use paths::{absolute, real};
pub(crate) use volume_record::VolumeRecord;

use paths::visited;

/// The read-write volumes of all guests. Clones share one set.
#[derive(Debug, Clone, Default)]
pub struct GuestWritable(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// Real paths.
    volumes: Vec<PathBuf>,
    /// Real paths of files and directories that the host executes for as long as it runs.
    executed: Vec<PathBuf>,
}

/// A path that a guest could have written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("guests may write {}: it lies in the read-write volume {}", path.display(), volume.display())]
pub struct GuestWritten {
    pub path: PathBuf,
    pub volume: PathBuf,
}

impl GuestWritten {
    pub const HINT: &str =
        "mount the volume read-only (`ro`), or mount a smaller directory without programs and settings";
}

/// A volume that would let guests write a path that the host executes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the volume {} cannot be read-write: the host executes {}", volume.display(), path.display())]
pub struct HostExecutes {
    pub path: PathBuf,
    pub volume: PathBuf,
}

impl GuestWritable {
    /// Creates the set from the volumes of sessions. Only read-write volumes count.
    pub fn from_volumes(volumes: &[Volume]) -> Self {
        let writable = Self::default();
        // Cannot fail: no executed path is registered yet.
        let _ = writable.add(volumes);
        writable
    }

    /// Adds volumes before a guest gets them. On an error they are added too, but no guest may get them.
    pub fn add(&self, volumes: &[Volume]) -> Result<(), HostExecutes> {
        let mut inner = self.inner();
        let mut refused = Ok(());
        for volume in volumes.iter().filter(|volume| volume.access == Access::ReadWrite) {
            let volume = real(&volume.host);
            if let Some(path) = inner.executed.iter().find(|path| overlap(path, &volume)) {
                refused = Err(HostExecutes { path: path.clone(), volume: volume.clone() });
            }
            if !inner.volumes.contains(&volume) {
                inner.volumes.push(volume);
            }
        }
        refused
    }

    /// Checks that no guest could have written, created or redirected this path.
    pub fn check(&self, path: &Path) -> Result<(), GuestWritten> {
        let inner = self.inner();
        let written = visited(path).into_iter().find_map(|step| inner.volume_of(&step).cloned());
        written.map_or(Ok(()), |volume| Err(GuestWritten { path: path.to_owned(), volume }))
    }

    /// Checks a path and everything below it.
    pub fn check_tree(&self, path: &Path) -> Result<(), GuestWritten> {
        self.check(path)?;
        let top = real(path);
        match self.inner().volumes.iter().find(|volume| volume.starts_with(&top)) {
            Some(volume) => Err(GuestWritten { path: volume.clone(), volume: volume.clone() }),
            None => Ok(()),
        }
    }

    /// Checks trees that the host executes from now on, and registers them, so that later volumes that contain them are
    /// refused.
    pub fn register_executed(&self, trees: &[PathBuf]) -> Result<(), GuestWritten> {
        trees.iter().try_for_each(|tree| self.check_tree(tree))?;
        let mut inner = self.inner();
        for tree in trees {
            let mut steps = visited(tree);
            let end = steps.pop();
            // Directories on the way do not matter; links on the way determine the target.
            let names = steps.into_iter().filter(|step| step.is_symlink()).chain(end);
            let new: Vec<PathBuf> = names.filter(|name| !inner.executed.contains(name)).collect();
            inner.executed.extend(new);
        }
        Ok(())
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }
}

impl PartialEq for GuestWritable {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.inner().volumes.clone() == other.inner().volumes
    }
}

impl Inner {
    fn volume_of(&self, path: &Path) -> Option<&PathBuf> {
        self.volumes.iter().find(|volume| path.starts_with(volume))
    }
}

fn overlap(a: &Path, b: &Path) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn volume(host: &Path, access: Access) -> Volume {
        Volume { host: host.to_owned(), guest: "/shown".into(), access, allowed_root: None }
    }

    fn directory(names: &[&str]) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        for name in names {
            std::fs::create_dir_all(base.join(name)).unwrap();
        }
        (directory, base)
    }

    #[test]
    fn paths_in_read_write_volumes_count_even_before_they_exist() {
        let (_directory, base) = directory(&["rw/below", "ro", "other"]);
        let writable = GuestWritable::from_volumes(&[
            volume(&base.join("rw"), Access::ReadWrite),
            volume(&base.join("ro"), Access::ReadOnly),
            volume(&base.join("later/file.json"), Access::ReadWrite),
        ]);
        for path in ["rw", "rw/missing", "rw/below/missing/deeper.json", "ro/../rw/x", "later/file.json"] {
            assert!(writable.check(&base.join(path)).is_err(), "{path}");
        }
        for path in ["", "ro/file", "other", "rwx", "later", "later/other"] {
            assert_eq!(writable.check(&base.join(path)), Ok(()), "{path}");
        }
        let error = writable.check(&base.join("rw/x")).unwrap_err();
        assert_eq!(error.volume, base.join("rw"));
        assert!(writable.check_tree(&base).is_err(), "guests may write a part of it");
        assert_eq!(writable.check_tree(&base.join("other")), Ok(()));
    }

    #[test]
    fn links_on_the_way_count() {
        let (_directory, base) = directory(&["rw", "safe", "entry"]);
        std::fs::write(base.join("safe/file"), "").unwrap();
        // The path and the target are safe, but a guest can replace the link between them.
        symlink(base.join("safe/file"), base.join("rw/middle")).unwrap();
        symlink("../rw/middle", base.join("entry/name")).unwrap();
        symlink("../safe", base.join("entry/directory")).unwrap();
        symlink("../rw", base.join("entry/into")).unwrap();
        symlink("loop", base.join("entry/loop")).unwrap();
        let writable = GuestWritable::from_volumes(&[volume(&base.join("rw"), Access::ReadWrite)]);
        assert!(writable.check(&base.join("entry/name")).is_err());
        assert!(writable.check(&base.join("entry/into/missing")).is_err());
        assert_eq!(writable.check(&base.join("entry/directory/file")), Ok(()));
        assert_eq!(writable.check(&base.join("entry/loop")), Ok(()));
        // The volume itself may be named through a link.
        let named = GuestWritable::from_volumes(&[volume(&base.join("entry/into"), Access::ReadWrite)]);
        assert!(named.check(&base.join("rw/x")).is_err());
    }

    #[test]
    fn volumes_with_executed_paths_are_refused() {
        let (_directory, base) = directory(&["prefix/bin", "prefix/lib", "data", "links"]);
        symlink(base.join("prefix/bin"), base.join("links/bin")).unwrap();
        let writable = GuestWritable::from_volumes(&[volume(&base.join("data"), Access::ReadWrite)]);
        assert_eq!(writable.register_executed(&[base.join("links/bin"), base.join("prefix/lib")]), Ok(()));
        for refused in ["prefix", "prefix/bin", "prefix/lib/below", "links", ""] {
            let volumes = [volume(&base.join(refused), Access::ReadWrite)];
            assert!(writable.clone().add(&volumes).is_err(), "{refused}");
        }
        let fresh = GuestWritable::default();
        fresh.register_executed(&[base.join("prefix/bin")]).unwrap();
        assert_eq!(fresh.add(&[volume(&base.join("prefix/share"), Access::ReadWrite)]), Ok(()));
        assert_eq!(fresh.add(&[volume(&base, Access::ReadOnly)]), Ok(()));
        assert!(writable.register_executed(&[base.join("data/bin")]).is_err());
    }
}
