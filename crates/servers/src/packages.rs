//! The package cache: a directory for everything that was installed, named by what it was made from.
//!
//! Each is made aside and appears under its name when it is complete. Servers see theirs read-only; only an
//! installation writes, and only into the new one that it makes. Two that need the same install it once: a lock tells
//! them apart, across processes too. What a killed installation has left is swept by the next.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use ringfence_core::{Access, Volume};
use sha2::{Digest as _, Sha256};

use super::manifests::Manifests;
use super::needs::{NODE_MANIFESTS, Need, PYTHON_MANIFESTS};
use super::phase::Phase;
use super::progress::Progress;
use ringfence_images::cache;
use ringfence_images::cache::{GUEST_READABLE_MODE, LOCK_RETRY_INTERVAL, PRIVATE_MODE, create_directory, try_lock};

/// Where packages are found inside.
const GUEST: &str = "/run/ringfence/packages";

/// Changed when what is installed from the same manifests becomes another.
const FORMAT: &str = "1";

const MOST_MANIFEST_BYTES: u64 = 16 << 20;

/// Something installed, or the place for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packages {
    cache: PathBuf,
    key: String,
}

impl Packages {
    /// The place for what a need comes to with this interpreter, for one run if it has a tag. Reads the manifests; may
    /// block.
    pub(crate) fn place(cache: &Path, need: &Need, interpreter: &str, run: Option<&str>) -> std::io::Result<Self> {
        Ok(Self { cache: cache.join("packages"), key: key(need, interpreter, run)? })
    }

    /// Where it is on the host once it is complete.
    pub(crate) fn host(&self) -> PathBuf {
        self.cache.join("ready").join(&self.key)
    }

    /// Where it is inside: the same for whoever installs and whoever uses it, since paths are written into it.
    pub(crate) fn guest(&self) -> PathBuf {
        Path::new(GUEST).join(&self.key)
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.host().is_dir()
    }

    pub(crate) fn volume(&self) -> Volume {
        Volume { host: self.host(), guest: self.guest(), access: Access::ReadOnly, allowed_root: None }
    }

    /// All there is, for a sandbox whose servers come and go.
    pub(crate) fn whole(cache: &Path) -> std::io::Result<Volume> {
        let ready = cache.join("packages/ready");
        create_directory(&cache.join("packages"), PRIVATE_MODE)?;
        create_directory(&ready, GUEST_READABLE_MODE)?;
        Ok(Volume { host: fs::canonicalize(ready)?, guest: GUEST.into(), access: Access::ReadOnly, allowed_root: None })
    }

    /// Waits for the right to make it, and says so if it must. Nobody else makes it while this is held.
    pub(crate) async fn lock(&self, progress: &Progress) -> std::io::Result<Making> {
        cache::create_section(&self.cache)?;
        let path = self.cache.join("locks").join(&self.key);
        let lock = loop {
            if let Some(lock) = try_lock(&path)? {
                break lock;
            }
            progress.say(Phase::DepInstall, "waiting for another installation");
            tokio::time::sleep(LOCK_RETRY_INTERVAL).await;
        };
        Ok(Making { packages: self.clone(), lock })
    }
}

/// The right to make one. Dropped before it is complete, what there is of it is removed.
pub(crate) struct Making {
    packages: Packages,
    lock: File,
}

impl Making {
    /// An empty directory to install into, to be shown at the place where it will be used.
    pub(crate) fn begin(&self) -> std::io::Result<Volume> {
        cache::remove_abandoned(&self.packages.cache);
        let new = self.new_directory();
        let _ = fs::remove_dir_all(&new);
        create_directory(&new, GUEST_READABLE_MODE)?;
        create_directory(&new.join(TEMPORARY), GUEST_READABLE_MODE)?;
        Ok(Volume {
            host: fs::canonicalize(new)?,
            guest: self.packages.guest(),
            access: Access::ReadWrite,
            allowed_root: None,
        })
    }

    pub(crate) fn new_directory(&self) -> PathBuf {
        self.packages.cache.join("new").join(&self.packages.key)
    }

    /// Gives it its name. Nothing may write to it any more.
    pub(crate) fn complete(self) -> std::io::Result<()> {
        let new = self.new_directory();
        fs::remove_dir_all(new.join(TEMPORARY))?;
        fs::rename(new, self.packages.host())
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        let new = self.new_directory();
        if !new.exists() {
            return;
        }
        let lock = self.lock.try_clone();
        // Whoever wrote it is being killed just now. Should this be too early, or not be at all, the next installation
        // sweeps.
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

/// For what an installation needs only meanwhile; on disk, since a sandbox's own /tmp is its memory.
pub(crate) const TEMPORARY: &str = ".tmp";

fn key(need: &Need, interpreter: &str, run: Option<&str>) -> std::io::Result<String> {
    let mut hash = Sha256::new();
    let mut add = |text: &[u8]| {
        // With its length, so that no two lists run into the same text.
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    };
    add(FORMAT.as_bytes());
    add(interpreter.as_bytes());
    match need {
        Need::Npm { packages } => {
            add(b"npm");
            add_all(packages, &mut add);
        }
        Need::Pip { requirements } => {
            add(b"pip");
            add_all(requirements, &mut add);
        }
        Need::PythonProject { root, guest, requirements } => {
            add(b"python");
            // An installed project points to its files.
            add(guest.as_os_str().as_encoded_bytes());
            add_all(requirements, &mut add);
            let mut names: Vec<String> = PYTHON_MANIFESTS.map(Into::into).to_vec();
            names.extend(requirement_files(root)?);
            add_manifests(root, &names, &mut add)?;
        }
        Need::NodeProject { root, .. } => {
            add(b"node");
            add_manifests(root, &NODE_MANIFESTS.map(Into::into), &mut add)?;
        }
    }
    // Code of a project has a hand in what is installed for it, and others than this run may have written that code.
    if let (Some(run), Need::PythonProject { .. } | Need::NodeProject { .. }) = (run, need) {
        add(b"run");
        add(run.as_bytes());
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

fn add_manifests(root: &Manifests, names: &[String], add: &mut impl FnMut(&[u8])) -> std::io::Result<()> {
    for name in names {
        if let Some(content) = root.read(name, MOST_MANIFEST_BYTES)? {
            add(name.as_bytes());
            add(&content);
        }
    }
    Ok(())
}

/// Those that one may include another of.
fn requirement_files(root: &Manifests) -> std::io::Result<Vec<String>> {
    let is_one = |name: &String| {
        let rest = name.strip_prefix("requirements").and_then(|rest| rest.strip_suffix(".txt"));
        rest.is_some_and(|rest| !rest.is_empty())
    };
    Ok(root.names()?.into_iter().filter(is_one).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn npm(package: &str) -> Need {
        Need::Npm { packages: vec![package.into()] }
    }

    #[test]
    fn keys_tell_apart_what_differs_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("requirements.txt"), "a").unwrap();
        let project = Need::PythonProject {
            root: Manifests::new(root.path().into(), None),
            guest: "/workspace".into(),
            requirements: vec![],
        };
        let first = key(&project, "3.11", None).unwrap();
        fs::write(root.path().join("server.py"), "changed").unwrap();
        assert_eq!(key(&project, "3.11", None).unwrap(), first, "code is not installed");
        assert_ne!(key(&project, "3.12", None).unwrap(), first);
        fs::write(root.path().join("requirements-base.txt"), "b").unwrap();
        let second = key(&project, "3.11", None).unwrap();
        assert_ne!(second, first);
        fs::write(root.path().join("requirements.txt"), "b").unwrap();
        assert_ne!(key(&project, "3.11", None).unwrap(), second);
        assert_ne!(key(&npm("a@1"), "20", None).unwrap(), key(&npm("a@2"), "20", None).unwrap());
        let of_run = |run: &str| key(&project, "3.11", Some(run)).unwrap();
        assert!(of_run("one") != of_run("two") && of_run("one") != key(&project, "3.11", None).unwrap());
        assert_eq!(
            key(&npm("a"), "20", Some("one")).unwrap(),
            key(&npm("a"), "20", None).unwrap(),
            "no project's code"
        );
        let two = Need::Npm { packages: vec!["a".into(), "b".into()] };
        assert_ne!(key(&two, "20", None).unwrap(), key(&npm("ab"), "20", None).unwrap());
    }

    #[tokio::test]
    async fn one_is_made_at_a_time_and_appears_when_it_is_complete() {
        let cache = tempfile::tempdir().unwrap();
        let packages = Packages::place(cache.path(), &npm("a"), "20", None).unwrap();
        let making = packages.lock(&Progress::default()).await.unwrap();
        let volume = making.begin().unwrap();
        fs::write(volume.host.join("x"), "").unwrap();
        assert!(!packages.is_ready());
        assert!(try_lock(&cache.path().join("packages/locks").join(&packages.key)).unwrap().is_none());
        making.complete().unwrap();
        assert!(packages.is_ready() && packages.host().join("x").exists() && !packages.host().join(TEMPORARY).exists());
        // What a killed one has left: a directory that nobody holds.
        let left = cache.path().join("packages/new/left");
        fs::create_dir(&left).unwrap();
        let other =
            Packages::place(cache.path(), &npm("b"), "20", None).unwrap().lock(&Progress::default()).await.unwrap();
        let volume = other.begin().unwrap();
        assert!(!left.exists());
        drop(other);
        for _ in 0..100 {
            std::thread::sleep(Duration::from_millis(20));
            if !volume.host.exists() {
                return;
            }
        }
        panic!("an installation that was given up leaves its directory");
    }
}
