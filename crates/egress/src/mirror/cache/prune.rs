//! The size of the cache, and the removal of the least recently used entries.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};

use super::{FORMAT, PackageCache};

/// The size of the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheUsage {
    /// Number of wheels, source archives, tarballs and programs.
    pub files: u64,
    pub file_bytes: u64,
    /// Number of documents of indexes.
    pub documents: u64,
    pub document_bytes: u64,
}

impl CacheUsage {
    pub fn bytes(&self) -> u64 {
        self.file_bytes + self.document_bytes
    }
}

/// The entries to remove. Without any limit, only abandoned downloads are removed.
#[derive(Debug, Clone, Copy, Default)]
pub struct PruneLimits {
    /// Remove the least recently used entries until the cache has at most this size.
    pub max_bytes: Option<u64>,
    /// Remove entries that were not used for this time.
    pub older_than: Option<Duration>,
}

/// The removed entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    pub entries: u64,
    pub bytes: u64,
}

struct Entry {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
    is_document: bool,
}

impl PackageCache {
    /// Measures the cache. A cache that does not exist is empty.
    pub fn usage(&self) -> io::Result<CacheUsage> {
        let mut usage = CacheUsage::default();
        for entry in self.entries()? {
            let (count, bytes) = if entry.is_document {
                (&mut usage.documents, &mut usage.document_bytes)
            } else {
                (&mut usage.files, &mut usage.file_bytes)
            };
            *count += 1;
            *bytes += entry.bytes;
        }
        Ok(usage)
    }

    /// Removes entries. Files that are being served stay readable for those who have opened them.
    pub fn prune(&self, limits: PruneLimits) -> io::Result<Pruned> {
        self.remove_abandoned()?;
        let mut entries = self.entries()?;
        entries.sort_by_key(|entry| entry.used);
        let mut bytes: u64 = entries.iter().map(|entry| entry.bytes).sum();
        let now = SystemTime::now();
        let mut pruned = Pruned::default();
        for entry in entries {
            let age = now.duration_since(entry.used).unwrap_or_default();
            let is_old = limits.older_than.is_some_and(|limit| age >= limit);
            let is_over = limits.max_bytes.is_some_and(|limit| bytes > limit);
            if !is_old && !is_over {
                continue;
            }
            match fs::remove_file(&entry.path) {
                Ok(()) => {
                    pruned.entries += 1;
                    pruned.bytes += entry.bytes;
                }
                // Another process prunes too.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            bytes = bytes.saturating_sub(entry.bytes);
        }
        Ok(pruned)
    }

    fn entries(&self) -> io::Result<Vec<Entry>> {
        let base = self.root.join(FORMAT);
        let mut entries = Vec::new();
        for (directory, depth, is_document) in [("files", 2, false), ("programs", 1, false), ("index", 1, true)] {
            collect(&base.join(directory), depth, is_document, &mut entries)?;
        }
        Ok(entries)
    }

    /// Removes downloads of processes that were killed.
    fn remove_abandoned(&self) -> io::Result<()> {
        const MIN_AGE: Duration = Duration::from_secs(60);
        for entry in children(&self.root.join(FORMAT).join("new"))? {
            let is_new = entry.metadata().and_then(|metadata| metadata.modified());
            let is_new = is_new.is_ok_and(|at| at.elapsed().is_ok_and(|age| age < MIN_AGE));
            let Ok(file) = OpenOptions::new().read(true).open(entry.path()) else { continue };
            if !is_new && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}

fn collect(directory: &Path, depth: u32, is_document: bool, entries: &mut Vec<Entry>) -> io::Result<()> {
    for child in children(directory)? {
        if depth > 0 {
            collect(&child.path(), depth - 1, is_document, entries)?;
        } else if let Ok(metadata) = child.metadata() {
            let used = metadata.accessed().unwrap_or(SystemTime::UNIX_EPOCH);
            entries.push(Entry { path: child.path(), bytes: metadata.len(), used, is_document });
        }
    }
    Ok(())
}

fn children(directory: &Path) -> io::Result<Vec<fs::DirEntry>> {
    match fs::read_dir(directory) {
        Ok(entries) => entries.collect(),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::FileTimes;
    use std::io::Write as _;

    use super::*;
    use crate::mirror::cache::Claim;
    use crate::mirror::hash::FileHash;

    fn store(cache: &PackageCache, digit: &str, bytes: usize, age: Duration) -> FileHash {
        let hash = FileHash::from_path(&digit.repeat(64)).unwrap();
        let Claim::New(new) = cache.claim(&hash).unwrap() else { panic!("the file is new") };
        let mut file = new.file().unwrap();
        file.write_all(&vec![0; bytes]).unwrap();
        new.commit().unwrap();
        file.set_times(FileTimes::new().set_accessed(SystemTime::now() - age)).unwrap();
        hash
    }

    #[test]
    fn least_recently_used_entries_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let cache = PackageCache::in_directory(directory.path());
        assert_eq!(cache.usage().unwrap(), CacheUsage::default());
        assert_eq!(cache.prune(PruneLimits::default()).unwrap(), Pruned::default());
        cache.create().unwrap();
        let hour = Duration::from_secs(3600);
        let old = store(&cache, "a", 100, hour * 3);
        let middle = store(&cache, "b", 100, hour * 2);
        let new = store(&cache, "c", 100, hour);
        cache.write_index(&"d".repeat(64), &[b"12", b"34"]).unwrap();
        let usage = cache.usage().unwrap();
        assert_eq!((usage.files, usage.file_bytes, usage.documents, usage.document_bytes), (3, 300, 1, 4));
        // A use makes the oldest entry the newest.
        assert!(cache.open_file(&old).unwrap().is_some());
        let pruned = cache.prune(PruneLimits { max_bytes: Some(204), older_than: None }).unwrap();
        assert_eq!(pruned, Pruned { entries: 1, bytes: 100 });
        assert!(cache.open_file(&middle).unwrap().is_none());
        let by_age = PruneLimits { max_bytes: None, older_than: Some(hour / 2) };
        assert_eq!(cache.prune(by_age).unwrap().entries, 1);
        assert!(cache.open_file(&new).unwrap().is_none() && cache.open_file(&old).unwrap().is_some());
    }

    #[test]
    fn order_of_removal_is_that_of_the_last_use() {
        let directory = tempfile::tempdir().unwrap();
        let cache = PackageCache::in_directory(directory.path());
        cache.create().unwrap();
        let hours = |index: u64| Duration::from_secs(3600 * (index * 7 % 16 + 1));
        let hashes: Vec<FileHash> =
            (0..16).map(|index| store(&cache, &format!("{index:x}"), 100, hours(index))).collect();
        cache.prune(PruneLimits { max_bytes: Some(800), older_than: None }).unwrap();
        for (index, hash) in (0..).zip(&hashes) {
            assert_eq!(
                cache.open_file(hash).unwrap().is_some(),
                hours(index) <= Duration::from_secs(3600 * 8),
                "{index}"
            );
        }
    }

    #[test]
    fn only_downloads_without_a_writer_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let cache = PackageCache::in_directory(directory.path());
        cache.create().unwrap();
        let new = |name: &str| cache.root.join(FORMAT).join("new").join(name);
        let hash = FileHash::from_path(&"a".repeat(64)).unwrap();
        let Claim::New(running) = cache.claim(&hash).unwrap() else { panic!("the file is new") };
        fs::write(new("left"), "x").unwrap();
        for path in [new("left"), new(hash.hex())] {
            let at = SystemTime::now() - Duration::from_secs(3600);
            OpenOptions::new().write(true).open(path).unwrap().set_times(FileTimes::new().set_modified(at)).unwrap();
        }
        cache.prune(PruneLimits::default()).unwrap();
        assert!(!new("left").exists() && new(hash.hex()).exists());
        drop(running);
    }
}
