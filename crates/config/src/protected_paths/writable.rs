//! The paths that guests may write. The host must neither execute such files nor read settings from them.
//!
//! A path counts as written by guests if it, or any symbolic link on the way to it, lies in a volume that a guest has
//! read-write. The file need not exist: a path counts if a guest can create it. The set only grows, because files that
//! a guest wrote remain after the guest has ended.

use ringfence_core::sync::Mutex;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, MutexGuard};

use ringfence_core::{Access, Volume};

use super::{absolute, real};

/// Maximum number of links in one path, as in the kernel (`path_resolution(7)`).
const MAX_LINKS: usize = 40;

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
        "mount the volume read-only (`ro`), or mount a smaller directory that holds no programs or settings";
}

/// A volume that would let guests write what the host executes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the volume {} cannot be read-write: the host executes {}", volume.display(), path.display())]
pub struct HostExecutes {
    pub path: PathBuf,
    pub volume: PathBuf,
}

impl GuestWritable {
    /// The volumes of sessions, of which only the read-write ones count.
    pub fn of(volumes: &[Volume]) -> Self {
        let writable = Self::default();
        // Nothing is executed yet.
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

    /// Checks the same of a path and of everything beneath it.
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
    pub fn execute(&self, trees: &[PathBuf]) -> Result<(), GuestWritten> {
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

fn overlap(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// Every name that is looked up while a path is resolved, each in its real directory; the last one is the target.
pub(super) fn visited(path: &Path) -> Vec<PathBuf> {
    let components = |path: &Path| path.components().rev().map(own_component).collect::<Vec<OsString>>();
    let mut pending = components(&absolute(path));
    let (mut at, mut steps, mut links) = (PathBuf::from("/"), Vec::new(), 0);
    while let Some(name) = pending.pop() {
        match Path::new(&name).components().next() {
            Some(Component::RootDir) => at = PathBuf::from("/"),
            Some(Component::ParentDir) => drop(at.pop()),
            Some(Component::Normal(name)) => {
                let next = at.join(name);
                steps.push(next.clone());
                match std::fs::read_link(&next) {
                    Ok(target) if links < MAX_LINKS => {
                        links += 1;
                        pending.extend(components(&target));
                    }
                    _ => at = next,
                }
            }
            Some(Component::CurDir | Component::Prefix(_)) | None => {}
        }
    }
    steps.push(at);
    steps
}

fn own_component(component: Component<'_>) -> OsString {
    component.as_os_str().to_owned()
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
    fn files_in_read_write_volumes_are_written_by_guests_also_before_they_exist() {
        let (_directory, base) = directory(&["rw/below", "ro", "other"]);
        let writable = GuestWritable::of(&[
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
        assert!(writable.check_tree(&base).is_err(), "a part of it is written");
        assert_eq!(writable.check_tree(&base.join("other")), Ok(()));
    }

    #[test]
    fn every_link_on_the_way_counts() {
        let (_directory, base) = directory(&["rw", "safe", "entry"]);
        std::fs::write(base.join("safe/file"), "").unwrap();
        // The path and the target are safe, but a guest can replace the link between them.
        symlink(base.join("safe/file"), base.join("rw/middle")).unwrap();
        symlink("../rw/middle", base.join("entry/name")).unwrap();
        symlink("../safe", base.join("entry/directory")).unwrap();
        symlink("../rw", base.join("entry/into")).unwrap();
        symlink("loop", base.join("entry/loop")).unwrap();
        let writable = GuestWritable::of(&[volume(&base.join("rw"), Access::ReadWrite)]);
        assert!(writable.check(&base.join("entry/name")).is_err());
        assert!(writable.check(&base.join("entry/into/missing")).is_err());
        assert_eq!(writable.check(&base.join("entry/directory/file")), Ok(()));
        assert_eq!(writable.check(&base.join("entry/loop")), Ok(()));
        // The volume itself may be named through a link.
        let named = GuestWritable::of(&[volume(&base.join("entry/into"), Access::ReadWrite)]);
        assert!(named.check(&base.join("rw/x")).is_err());
    }

    #[test]
    fn volumes_that_show_what_the_host_executes_are_refused() {
        let (_directory, base) = directory(&["prefix/bin", "prefix/lib", "data", "links"]);
        symlink(base.join("prefix/bin"), base.join("links/bin")).unwrap();
        let writable = GuestWritable::of(&[volume(&base.join("data"), Access::ReadWrite)]);
        assert_eq!(writable.execute(&[base.join("links/bin"), base.join("prefix/lib")]), Ok(()));
        for refused in ["prefix", "prefix/bin", "prefix/lib/below", "links", ""] {
            let volumes = [volume(&base.join(refused), Access::ReadWrite)];
            assert!(writable.clone().add(&volumes).is_err(), "{refused}");
        }
        let fresh = GuestWritable::default();
        fresh.execute(&[base.join("prefix/bin")]).unwrap();
        assert_eq!(fresh.add(&[volume(&base.join("prefix/share"), Access::ReadWrite)]), Ok(()));
        assert_eq!(fresh.add(&[volume(&base, Access::ReadOnly)]), Ok(()));
        assert!(writable.execute(&[base.join("data/bin")]).is_err());
    }
}
