//! The package cache: one directory for each installed dependency, named by a hash of its inputs.
//!
//! An installation writes into a directory under `new/`, which is renamed to `ready/` when it is complete. Servers see
//! their packages read-only; only an installation writes, and only into its new directory. A lock file ensures that the
//! same dependency is installed only once, also across processes. The next installation removes the directories of
//! killed ones.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use ringfence_core::{Access, Volume};
use sha2::{Digest as _, Sha256};

use crate::phase::{Phase, Progress};
use crate::plan::{Dependency, ManifestDirectory, NODE_MANIFESTS, PYTHON_MANIFESTS};
use ringfence_images::cache;
use ringfence_images::cache::{GUEST_READABLE_MODE, LOCK_RETRY_INTERVAL, PRIVATE_MODE, create_directory, try_lock};

/// The directory of all packages inside a sandbox.
const GUEST_DIRECTORY: &str = "/run/ringfence/packages";

/// Part of every key; to be increased when the same inputs are installed in a different way.
const FORMAT: &str = "1";

const MAX_MANIFEST_BYTES: u64 = 16 << 20;

/// The directory of temporary files of an installation. It is on disk, because /tmp of a sandbox uses its memory.
pub(super) const TEMPORARY_DIRECTORY: &str = ".tmp";

/// The cache entry of a dependency, which may not be installed yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CacheEntry {
    cache: PathBuf,
    key: String,
}

impl CacheEntry {
    /// Returns the entry of a dependency with this interpreter; of a project, that of one scope. Reads manifests; may
    /// block.
    pub(super) fn find(
        cache: &Path,
        dependency: &Dependency,
        interpreter: &str,
        scope_tag: Option<&str>,
    ) -> std::io::Result<Self> {
        Ok(Self { cache: cache.join("packages"), key: key(dependency, interpreter, scope_tag)? })
    }

    /// Returns its directory on the host, which exists once the entry is complete.
    pub(super) fn host(&self) -> PathBuf {
        self.cache.join("ready").join(&self.key)
    }

    /// Returns its directory inside a sandbox. It is the same for the installation and for servers, because installed
    /// files contain it.
    pub(super) fn guest(&self) -> PathBuf {
        Path::new(GUEST_DIRECTORY).join(&self.key)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.host().is_dir()
    }

    pub(super) fn volume(&self) -> Volume {
        Volume { host: self.host(), guest: self.guest(), access: Access::ReadOnly, allowed_root: None }
    }

    pub(super) fn whole_cache_volume(cache: &Path) -> std::io::Result<Volume> {
        let ready = cache.join("packages/ready");
        create_directory(&cache.join("packages"), PRIVATE_MODE)?;
        create_directory(&ready, GUEST_READABLE_MODE)?;
        Ok(Volume {
            host: fs::canonicalize(ready)?,
            guest: GUEST_DIRECTORY.into(),
            access: Access::ReadOnly,
            allowed_root: None,
        })
    }

    /// Waits for the exclusive right to install the entry, and reports that it waits.
    pub(super) async fn lock(&self, progress: &Progress) -> std::io::Result<PendingEntry> {
        cache::create_section(&self.cache)?;
        let path = self.cache.join("locks").join(&self.key);
        let lock = loop {
            if let Some(lock) = try_lock(&path)? {
                break lock;
            }
            progress.report(Phase::DepInstall, "waiting for another installation");
            tokio::time::sleep(LOCK_RETRY_INTERVAL).await;
        };
        Ok(PendingEntry { entry: self.clone(), lock })
    }
}

/// The exclusive right to install an entry. Dropping it before it is complete removes its files.
pub(super) struct PendingEntry {
    entry: CacheEntry,
    lock: File,
}

impl PendingEntry {
    /// Creates an empty directory, and returns it as a read-write volume with the path that servers see later.
    pub(super) fn create(&self) -> std::io::Result<Volume> {
        cache::remove_abandoned(&self.entry.cache);
        let new = self.directory();
        let _ = fs::remove_dir_all(&new);
        create_directory(&new, GUEST_READABLE_MODE)?;
        create_directory(&new.join(TEMPORARY_DIRECTORY), GUEST_READABLE_MODE)?;
        Ok(Volume {
            host: fs::canonicalize(new)?,
            guest: self.entry.guest(),
            access: Access::ReadWrite,
            allowed_root: None,
        })
    }

    pub(super) fn directory(&self) -> PathBuf {
        self.entry.cache.join("new").join(&self.entry.key)
    }

    /// Renames the directory to its final name. Nothing may write to it any more.
    pub(super) fn complete(self) -> std::io::Result<()> {
        let new = self.directory();
        fs::remove_dir_all(new.join(TEMPORARY_DIRECTORY))?;
        fs::rename(new, self.entry.host())
    }
}

impl Drop for PendingEntry {
    fn drop(&mut self) {
        let new = self.directory();
        if !new.exists() {
            return;
        }
        let lock = self.lock.try_clone();
        // The processes that write to it are being killed now, so the removal may have to be repeated. If it does not
        // succeed, the next installation removes the directory.
        let _ = std::thread::Builder::new().spawn(move || {
            for _ in 0..50 {
                if fs::remove_dir_all(&new).is_ok() || !new.exists() {
                    break;
                }
                std::thread::sleep(LOCK_RETRY_INTERVAL);
            }
            drop(lock);
        });
    }
}

fn key(dependency: &Dependency, interpreter: &str, scope_tag: Option<&str>) -> std::io::Result<String> {
    let mut hash = Sha256::new();
    let mut add = |text: &[u8]| {
        // The length separates the items, so that different lists never give the same bytes.
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    };
    add(FORMAT.as_bytes());
    add(interpreter.as_bytes());
    match dependency {
        Dependency::NpmPackages { packages } => {
            add(b"npm");
            add_all(packages, &mut add);
        }
        Dependency::PipPackages { requirements } => {
            add(b"pip");
            add_all(requirements, &mut add);
        }
        Dependency::PythonProject { root, guest, requirements } => {
            add(b"python");
            // An editable installation contains this path.
            add(guest.as_os_str().as_encoded_bytes());
            add_all(requirements, &mut add);
            let mut names: Vec<String> = PYTHON_MANIFESTS.map(Into::into).to_vec();
            names.extend(requirement_files(root)?);
            add_manifests(root, &names, &mut add)?;
        }
        Dependency::NodeProject { root, .. } => {
            add(b"node");
            add_manifests(root, &NODE_MANIFESTS.map(Into::into), &mut add)?;
        }
    }
    // The code of a project is executed during its installation, and guests of another scope may have written it.
    if let Some(tag) = scope_tag.filter(|_| dependency.is_project()) {
        add(b"run");
        add(tag.as_bytes());
    }
    let digest = hash.finalize();
    let half = u128::from_be_bytes(std::array::from_fn(|index| digest[index]));
    Ok(format!("{half:032x}"))
}

fn add_all(texts: &[String], add: &mut impl FnMut(&[u8])) {
    for text in texts {
        add(text.as_bytes());
    }
}

fn add_manifests(root: &ManifestDirectory, names: &[String], add: &mut impl FnMut(&[u8])) -> std::io::Result<()> {
    for name in names {
        if let Some(content) = root.read(name, MAX_MANIFEST_BYTES)? {
            add(name.as_bytes());
            add(&content);
        }
    }
    Ok(())
}

/// Returns the names of further requirement files, such as `requirements-dev.txt`, which `requirements.txt` may include.
fn requirement_files(root: &ManifestDirectory) -> std::io::Result<Vec<String>> {
    let is_requirement_file = |name: &String| {
        let rest = name.strip_prefix("requirements").and_then(|rest| rest.strip_suffix(".txt"));
        rest.is_some_and(|rest| !rest.is_empty())
    };
    Ok(root.names()?.into_iter().filter(is_requirement_file).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn npm(package: &str) -> Dependency {
        Dependency::NpmPackages { packages: vec![package.into()] }
    }

    #[test]
    fn key_depends_on_all_inputs_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("requirements.txt"), "a").unwrap();
        let project = Dependency::PythonProject {
            root: ManifestDirectory::new(root.path().into(), None),
            guest: "/workspace".into(),
            requirements: vec![],
        };
        let first = key(&project, "3.11", None).unwrap();
        fs::write(root.path().join("server.py"), "changed").unwrap();
        assert_eq!(key(&project, "3.11", None).unwrap(), first, "code is not an input");
        assert_ne!(key(&project, "3.12", None).unwrap(), first);
        fs::write(root.path().join("requirements-base.txt"), "b").unwrap();
        let second = key(&project, "3.11", None).unwrap();
        assert_ne!(second, first);
        fs::write(root.path().join("requirements.txt"), "b").unwrap();
        assert_ne!(key(&project, "3.11", None).unwrap(), second);
        assert_ne!(key(&npm("a@1"), "20", None).unwrap(), key(&npm("a@2"), "20", None).unwrap());
        let in_scope = |tag: &str| key(&project, "3.11", Some(tag)).unwrap();
        assert!(in_scope("one") != in_scope("two") && in_scope("one") != key(&project, "3.11", None).unwrap());
        assert_eq!(
            key(&npm("a"), "20", Some("one")).unwrap(),
            key(&npm("a"), "20", None).unwrap(),
            "no code of a project is executed"
        );
        let two = Dependency::NpmPackages { packages: vec!["a".into(), "b".into()] };
        assert_ne!(key(&two, "20", None).unwrap(), key(&npm("ab"), "20", None).unwrap());
    }

    #[tokio::test]
    async fn entry_is_installed_once_and_visible_when_complete() {
        let cache = tempfile::tempdir().unwrap();
        let entry = CacheEntry::find(cache.path(), &npm("a"), "20", None).unwrap();
        let pending = entry.lock(&Progress::default()).await.unwrap();
        let volume = pending.create().unwrap();
        fs::write(volume.host.join("x"), "").unwrap();
        assert!(!entry.is_complete());
        assert!(try_lock(&cache.path().join("packages/locks").join(&entry.key)).unwrap().is_none());
        pending.complete().unwrap();
        assert!(
            entry.is_complete() && entry.host().join("x").exists() && !entry.host().join(TEMPORARY_DIRECTORY).exists()
        );
        // The directory of a killed installation: nothing has a lock on it.
        let abandoned = cache.path().join("packages/new/left");
        fs::create_dir(&abandoned).unwrap();
        let other =
            CacheEntry::find(cache.path(), &npm("b"), "20", None).unwrap().lock(&Progress::default()).await.unwrap();
        let volume = other.create().unwrap();
        assert!(!abandoned.exists());
        drop(other);
        for _ in 0..100 {
            std::thread::sleep(Duration::from_millis(20));
            if !volume.host.exists() {
                return;
            }
        }
        panic!("a cancelled installation left its directory");
    }
}
