//! An image in the cache, under the digest of its manifest.
//!
//! An image is unpacked into a new directory, which is renamed when it is complete and on disk. If two servers need the
//! same image, one unpacks it and the other waits. Directories of killed processes are removed by the next process that
//! unpacks an image.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::syncfs;

use crate::cache::{self, GUEST_READABLE_MODE, LOCK_RETRY_INTERVAL, create_directory};
use crate::error::ImageError;
use crate::layout::Digest;

/// Version of the unpacked form. Increase it when the same image would be unpacked differently.
const FORMAT_VERSION: u32 = 1;

/// Maximum time to wait for another process that unpacks the same image.
const LOCK_TIMEOUT: Duration = Duration::from_secs(600);

/// The cache entry of one image.
pub(crate) struct CachedImage {
    section: PathBuf,
    key: String,
}

impl CachedImage {
    pub(crate) fn new(cache: &Path, digest: &Digest) -> Self {
        Self { section: cache.join("images"), key: format!("{}-{FORMAT_VERSION}", digest.hexadecimal()) }
    }

    /// Returns the directory of the image; calls `unpack` with a new directory if the image is not in the cache.
    pub(crate) fn get_or_unpack(
        &self,
        unpack: impl FnOnce(&Path) -> Result<(), ImageError>,
    ) -> Result<PathBuf, ImageError> {
        let ready = self.section.join("ready").join(&self.key);
        if !ready.is_dir() {
            cache::create_section(&self.section).map_err(|error| self.error(error))?;
            let _lock = self.lock()?;
            // Another process may have unpacked it in the meantime.
            if !ready.is_dir() {
                self.unpack_locked(&ready, unpack)?;
            }
        }
        fs::canonicalize(ready).map_err(|error| self.error(error))
    }

    fn unpack_locked(
        &self,
        ready: &Path,
        unpack: impl FnOnce(&Path) -> Result<(), ImageError>,
    ) -> Result<(), ImageError> {
        cache::remove_abandoned(&self.section);
        let new = self.section.join("new").join(&self.key);
        // `remove_abandoned` skips this one, because this process has its lock.
        let _ = fs::remove_dir_all(&new);
        create_directory(&new, GUEST_READABLE_MODE).map_err(|error| self.error(error))?;
        let complete = || {
            syncfs(File::open(&new)?)?;
            fs::rename(&new, ready)
        };
        let result = unpack(&new).and_then(|()| complete().map_err(|error| self.error(error)));
        if result.is_err() {
            let _ = fs::remove_dir_all(&new);
        }
        result
    }

    fn lock(&self) -> Result<File, ImageError> {
        let path = self.section.join("locks").join(&self.key);
        let deadline = Instant::now() + LOCK_TIMEOUT;
        let mut is_logged = false;
        loop {
            if let Some(lock) = cache::try_lock(&path).map_err(|error| self.error(error))? {
                return Ok(lock);
            }
            if Instant::now() > deadline {
                return Err(ImageError::Busy);
            }
            if !is_logged {
                tracing::info!("waiting for another process that unpacks the same image");
                is_logged = true;
            }
            std::thread::sleep(LOCK_RETRY_INTERVAL);
        }
    }

    fn error(&self, source: io::Error) -> ImageError {
        ImageError::Cache { path: self.section.clone(), source }
    }
}
