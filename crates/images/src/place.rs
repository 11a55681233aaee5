//! Where an image is unpacked: in the cache, under the digest of its manifest.
//!
//! It is made aside, and appears under its name when it is complete and on the disk. Of two servers that need the same,
//! one makes it and the other waits. What one that was killed has left is swept by the next that unpacks anything.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::syncfs;

use super::digest::Digest;
use super::error::ImageError;
use crate::cache;
use crate::cache::{BETWEEN_TRIES, SHOWN, make_directory};

/// Changed when the same image would be unpacked to something else.
const FORMAT: u32 = 1;

/// For another to unpack it.
const PATIENCE: Duration = Duration::from_secs(600);

pub(super) struct Place {
    images: PathBuf,
    key: String,
}

impl Place {
    pub(super) fn new(cache: &Path, digest: &Digest) -> Self {
        Self { images: cache.join("images"), key: format!("{}-{FORMAT}", digest.hexadecimal()) }
    }

    /// The directory with what `fill` puts into it, unless it is there already.
    pub(super) fn make(&self, fill: impl FnOnce(&Path) -> Result<(), ImageError>) -> Result<PathBuf, ImageError> {
        let failed = |source: io::Error| ImageError::Cache { path: self.images.clone(), source };
        let ready = self.images.join("ready").join(&self.key);
        if !ready.is_dir() {
            cache::make_part(&self.images).map_err(failed)?;
            let _lock = self.lock()?;
            // Another may have made it meanwhile.
            if !ready.is_dir() {
                self.make_locked(&ready, fill)?;
            }
        }
        fs::canonicalize(ready).map_err(failed)
    }

    fn make_locked(&self, ready: &Path, fill: impl FnOnce(&Path) -> Result<(), ImageError>) -> Result<(), ImageError> {
        let failed = |source: io::Error| ImageError::Cache { path: self.images.clone(), source };
        cache::sweep(&self.images);
        let new = self.images.join("new").join(&self.key);
        // Of one before, which was killed; nobody else has the lock.
        let _ = fs::remove_dir_all(&new);
        make_directory(&new, SHOWN).map_err(failed)?;
        let complete = || {
            syncfs(File::open(&new)?)?;
            fs::rename(&new, ready)
        };
        let made = fill(&new).and_then(|()| complete().map_err(failed));
        if made.is_err() {
            let _ = fs::remove_dir_all(&new);
        }
        made
    }

    fn lock(&self) -> Result<File, ImageError> {
        let failed = |source: io::Error| ImageError::Cache { path: self.images.clone(), source };
        let path = self.images.join("locks").join(&self.key);
        let deadline = Instant::now() + PATIENCE;
        let mut is_told = false;
        loop {
            if let Some(lock) = cache::try_lock(&path).map_err(failed)? {
                return Ok(lock);
            }
            if Instant::now() > deadline {
                return Err(ImageError::Busy);
            }
            if !is_told {
                tracing::info!("waiting for another process that unpacks the same image");
                is_told = true;
            }
            std::thread::sleep(BETWEEN_TRIES);
        }
    }
}
