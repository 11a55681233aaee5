//! The cache on the host's disk. Only this process and other ringfence processes of the same user write it; guests have
//! no access to its directory.
//!
//! ```text
//! v1/files/ALGORITHM/XX/HASH   files, whose content has this hash
//! v1/index/XX/KEY              documents of indexes
//! v1/new/HASH                  downloads, each locked by the process that writes it
//! v1/programs/NAME-VERSION/    one program, in a directory that sandboxes have read-only
//! ```
//! A file is written under `new` and renamed when it is complete and its hash is correct, so that every entry is complete.
//! The access time of a file is the time of its last use, which pruning goes by; the modification time of a document is
//! the time when the registry last confirmed it.

mod prune;

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};

use super::hash::FileHash;
pub use prune::{CacheUsage, PruneLimits, Pruned};

/// Part of the path; to be increased when the format of documents changes.
const FORMAT: &str = "v1";
/// Uses within this time are recorded once.
const USE_INTERVAL: Duration = Duration::from_secs(600);

/// The cache of packages in one directory.
#[derive(Debug, Clone)]
pub struct PackageCache {
    root: PathBuf,
}

/// A download that this process alone writes. Dropping it before [`Self::commit`] removes its file.
#[derive(Debug)]
pub(super) struct NewFile {
    path: PathBuf,
    target: PathBuf,
    file: Option<File>,
}

/// The state of a file in the cache.
#[derive(Debug)]
pub(super) enum Claim {
    /// The file is complete.
    Complete,
    /// This process has the right to write it.
    New(NewFile),
    /// Another process writes it.
    Busy,
}

impl PackageCache {
    /// Returns the cache below the cache directory of ringfence. Nothing is created yet.
    pub fn in_directory(cache_directory: &Path) -> Self {
        Self { root: cache_directory.join("mirror") }
    }

    /// Returns the directory of the cache.
    pub fn directory(&self) -> &Path {
        &self.root
    }

    /// Creates the directories, and checks that no other user can write them.
    ///
    /// The cache is usually `~/.cache/ringfence`. A home directory that does not exist, such as that of a system user, is
    /// not created.
    pub(super) fn create(&self) -> io::Result<()> {
        if let Some(home) = self.root.ancestors().nth(3) {
            fs::metadata(home)?;
        }
        for part in ["", "files", "index", "new"] {
            create_private(&self.root.join(FORMAT).join(part))?;
        }
        let metadata = fs::symlink_metadata(&self.root)?;
        let own = rustix::process::geteuid().as_raw();
        if !metadata.is_dir() || metadata.uid() != own {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        fs::set_permissions(&self.root, fs::Permissions::from_mode(0o700))
    }

    /// Returns the directory of the directories of programs.
    pub(super) fn programs_directory(&self) -> PathBuf {
        self.root.join(FORMAT).join("programs")
    }

    /// Returns whether a program exists, and records the use.
    pub(super) fn use_program(path: &Path) -> io::Result<bool> {
        let Some(file) = open(path)? else { return Ok(false) };
        record_use(&file, &file.metadata()?);
        Ok(true)
    }

    /// Returns a temporary file, to be renamed within the cache.
    pub(super) fn new_file(&self) -> io::Result<tempfile::NamedTempFile> {
        tempfile::NamedTempFile::new_in(self.root.join(FORMAT).join("new"))
    }

    fn file_path(&self, hash: &FileHash) -> PathBuf {
        let hex = hash.hex();
        self.root.join(FORMAT).join("files").join(hash.algorithm().name()).join(&hex[..2]).join(hex)
    }

    fn index_path(&self, key: &str) -> PathBuf {
        self.root.join(FORMAT).join("index").join(&key[..2]).join(key)
    }

    /// Opens a file with this content, and records the use.
    pub(super) fn open_file(&self, hash: &FileHash) -> io::Result<Option<(File, u64)>> {
        let Some(file) = open(&self.file_path(hash))? else { return Ok(None) };
        let metadata = file.metadata()?;
        record_use(&file, &metadata);
        Ok(Some((file, metadata.len())))
    }

    /// Claims the right to download a file.
    pub(super) fn claim(&self, hash: &FileHash) -> io::Result<Claim> {
        let target = self.file_path(hash);
        let path = self.root.join(FORMAT).join("new").join(hash.hex());
        for _ in 0..8 {
            if target.exists() {
                return Ok(Claim::Complete);
            }
            let file =
                OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(0o600).open(&path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(Claim::Busy),
                Err(errno) => return Err(errno.into()),
            }
            // Another process may have completed or removed the file between `open` and `flock`.
            let is_current = fs::symlink_metadata(&path)
                .is_ok_and(|now| file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (now.dev(), now.ino())));
            if is_current && !target.exists() {
                file.set_len(0)?;
                return Ok(Claim::New(NewFile { path, target, file: Some(file) }));
            }
        }
        Ok(Claim::Busy)
    }

    /// Opens a stored document, and records the use. Returns its metadata with the time of the last confirmation.
    pub(super) fn open_index(&self, key: &str) -> io::Result<Option<(File, fs::Metadata)>> {
        let Some(file) = open(&self.index_path(key))? else { return Ok(None) };
        let metadata = file.metadata()?;
        record_use(&file, &metadata);
        Ok(Some((file, metadata)))
    }

    /// Stores a document, which replaces an earlier one at once.
    pub(super) fn write_index(&self, key: &str, parts: &[&[u8]]) -> io::Result<()> {
        let target = self.index_path(key);
        create_private(target.parent().unwrap_or(&self.root))?;
        // Other processes may write the same document, also some with the same process id in other containers.
        let mut file = self.new_file()?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.persist(target)?;
        Ok(())
    }

    /// Records that the registry has confirmed a document.
    pub(super) fn confirm_index(&self, key: &str) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.index_path(key))?;
        let now = SystemTime::now();
        file.set_times(FileTimes::new().set_accessed(now).set_modified(now))
    }
}

impl NewFile {
    /// Returns another handle of the file.
    pub(super) fn file(&self) -> io::Result<File> {
        self.file.as_ref().ok_or(io::ErrorKind::NotFound)?.try_clone()
    }

    /// Makes the file visible. Its content must have been checked.
    pub(super) fn commit(mut self) -> io::Result<()> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        // After a crash of the host, the name must not refer to incomplete content.
        file.sync_data()?;
        file.set_permissions(fs::Permissions::from_mode(0o400))?;
        create_private(self.target.parent().unwrap_or(Path::new("/")))?;
        fs::rename(&self.path, &self.target)?;
        self.file = None;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // The lock is released afterwards.
        if self.file.is_some() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn create_private(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn open(path: &Path) -> io::Result<Option<File>> {
    match OpenOptions::new().read(true).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sets the access time, also on file systems that do not.
fn record_use(file: &File, metadata: &fs::Metadata) {
    let now = SystemTime::now();
    let is_recent = metadata.accessed().is_ok_and(|last| now.duration_since(last).is_ok_and(|age| age < USE_INTERVAL));
    if !is_recent {
        let _ = file.set_times(FileTimes::new().set_accessed(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> (tempfile::TempDir, PackageCache) {
        let directory = tempfile::tempdir().unwrap();
        let cache = PackageCache::in_directory(directory.path());
        cache.create().unwrap();
        (directory, cache)
    }

    #[test]
    fn concurrent_writers_of_a_document_leave_one_of_them() {
        let (directory, cache) = cache();
        let write = |text: &[u8]| (0..200).for_each(|_| cache.write_index("abc", &[text]).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| write(&[b'a'; 5000]));
            scope.spawn(|| write(&[b'b'; 7000]));
        });
        let (mut file, metadata) = cache.open_index("abc").unwrap().unwrap();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut file, &mut text).unwrap();
        assert!([5000, 7000].contains(&metadata.len()) && text.bytes().all(|byte| byte == text.as_bytes()[0]));
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path().join("mirror/v1/new")).unwrap().count(), 0);
    }

    #[test]
    fn file_is_visible_only_after_commit_and_has_one_writer() {
        let (_directory, cache) = cache();
        let hash = FileHash::from_path(&"a".repeat(64)).unwrap();
        let Claim::New(new) = cache.claim(&hash).unwrap() else { panic!("the file is new") };
        new.file().unwrap().write_all(b"content").unwrap();
        assert!(cache.open_file(&hash).unwrap().is_none());
        assert!(matches!(cache.claim(&hash).unwrap(), Claim::Busy));
        new.commit().unwrap();
        assert_eq!(cache.open_file(&hash).unwrap().unwrap().1, 7);
        assert!(matches!(cache.claim(&hash).unwrap(), Claim::Complete));
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&cache.root), mode(&cache.file_path(&hash))), (0o700, 0o400));
    }

    #[test]
    fn abandoned_download_is_started_again() {
        let (_directory, cache) = cache();
        let hash = FileHash::from_path(&"b".repeat(64)).unwrap();
        let Claim::New(new) = cache.claim(&hash).unwrap() else { panic!("the file is new") };
        drop(new);
        assert!(fs::read_dir(cache.root.join(FORMAT).join("new")).unwrap().next().is_none());
        // A killed process leaves its file without a lock.
        fs::write(cache.root.join(FORMAT).join("new").join(hash.hex()), "half").unwrap();
        let Claim::New(new) = cache.claim(&hash).unwrap() else { panic!("the file is free") };
        assert_eq!(new.file().unwrap().metadata().unwrap().len(), 0);
    }

    #[test]
    fn home_directory_is_not_created() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().join("home");
        let cache = PackageCache::in_directory(&home.join(".cache/ringfence"));
        assert_eq!(cache.create().map_err(|error| error.kind()), Err(io::ErrorKind::NotFound));
        assert!(!home.exists());
        fs::create_dir(&home).unwrap();
        cache.create().unwrap();
    }

    #[test]
    fn directory_of_another_kind_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let elsewhere = directory.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, directory.path().join("mirror")).unwrap();
        assert!(PackageCache::in_directory(directory.path()).create().is_err());
    }
}
