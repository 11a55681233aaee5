//! Downloads of files into the cache. All requests for one file share a download, which continues if they end.
//!
//! A file gets its name in the cache only after its hash was checked. While it is downloaded, its bytes can be read up to
//! `written`; a connection must not send the end of the file before the download is complete.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use reqwest::Url;
use ringfence_core::sync::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::budget::cost_of_bytes;
use super::cache::{Claim, NewFile, PackageCache, PruneLimits};
use super::error::MirrorError;
use super::guest::{Admission, Guest};
use super::hash::{FileHash, Hasher};
use super::indexes::blocking;
use super::upstream::Upstream;

/// Timeout for one file.
const TIMEOUT: Duration = Duration::from_secs(1800);
/// Maximum size of one file.
const MAX_BYTES: u64 = 4 << 30;
/// Maximum size of a file whose size the registry does not state.
const UNKNOWN_BYTES: u64 = 256 << 20;
/// Maximum number of files that are downloaded at the same time.
const MAX_RUNNING: usize = 16;
/// Maximum number of downloads that wait.
const MAX_WAITING: usize = 1024;
/// Interval between checks whether another process has finished a download.
const BUSY_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of MiB that running downloads may write.
const MAX_SPACE: usize = 64 << 10;
/// Bytes that are collected before they are written.
const WRITE_BYTES: usize = 256 << 10;
/// The cache is measured again after this many bytes were downloaded.
const MEASURE_INTERVAL: u64 = 64 << 20;

/// A file at a registry.
#[derive(Debug, Clone)]
pub(super) struct RemoteFile {
    pub(super) url: Url,
    pub(super) hash: FileHash,
    /// The package, for the log.
    pub(super) package: String,
}

/// The progress of a download.
#[derive(Debug, Clone)]
pub(super) enum Progress {
    Waiting,
    /// `length` is the size that the registry states, if it does.
    Running {
        file: Arc<File>,
        written: u64,
        length: Option<u64>,
    },
    Complete,
    Failed(MirrorError),
}

#[derive(Debug)]
struct Running {
    progress: watch::Receiver<Progress>,
    task: AbortHandle,
}

/// All downloads of this process.
#[derive(Debug)]
pub(super) struct Downloads {
    cache: PackageCache,
    max_bytes: u64,
    running: Mutex<HashMap<FileHash, Running>>,
    slots: Semaphore,
    /// MiB that running downloads may write. They are not part of the measured cache.
    space: Semaphore,
    /// Bytes that were downloaded since the cache was last measured.
    unmeasured: AtomicU64,
}

impl Downloads {
    /// Ends all downloads, whose files are removed.
    pub(super) fn abort(&self) {
        for running in self.running.lock().values() {
            running.task.abort();
        }
    }

    pub(super) fn new(cache: PackageCache, max_bytes: u64) -> Self {
        Self {
            cache,
            max_bytes,
            running: Mutex::default(),
            slots: Semaphore::new(MAX_RUNNING),
            space: Semaphore::new(usize::try_from((max_bytes / 4) >> 20).unwrap_or(MAX_SPACE).clamp(1, MAX_SPACE)),
            // The first download measures.
            unmeasured: AtomicU64::new(MEASURE_INTERVAL),
        }
    }

    /// Returns the running download of a file, if there is one.
    pub(super) fn running(&self, hash: &FileHash) -> Option<watch::Receiver<Progress>> {
        self.running.lock().get(hash).map(|running| running.progress.clone())
    }

    /// Joins the download of a file, or starts one, with the permit of the guest.
    pub(super) fn start<U>(
        self: &Arc<Self>,
        remote: RemoteFile,
        upstream: Arc<U>,
        guest: Arc<Guest>,
        admission: Arc<Admission>,
        permit: OwnedSemaphorePermit,
    ) -> Result<watch::Receiver<Progress>, MirrorError>
    where
        U: AsRef<Upstream> + Send + Sync + 'static,
    {
        let mut running = self.running.lock();
        if let Some(found) = running.get(&remote.hash) {
            return Ok(found.progress.clone());
        }
        if running.len() >= MAX_WAITING {
            return Err(MirrorError::Budget);
        }
        let (sender, progress) = watch::channel(Progress::Waiting);
        let hash = remote.hash.clone();
        let downloads = Arc::clone(self);
        let work = async move {
            let done = run(&downloads, &remote, (*upstream).as_ref(), &guest, &admission, &sender);
            let outcome = timeout(TIMEOUT, done).await.unwrap_or(Err(MirrorError::Timeout));
            drop(permit);
            guest.record(&remote.package, Some(&remote.url), &outcome);
            // New requests find the file in the cache, or start again.
            downloads.running.lock().remove(&remote.hash);
            let _ = sender.send(outcome.map_or_else(Progress::Failed, |()| Progress::Complete));
        };
        let task = tokio::spawn(work).abort_handle();
        running.insert(hash, Running { progress: progress.clone(), task });
        Ok(progress)
    }

    /// Removes old entries if the cache may be larger than its limit.
    async fn make_room(&self, bytes: u64) -> Result<(), MirrorError> {
        if self.unmeasured.fetch_add(bytes, Ordering::Relaxed) + bytes < MEASURE_INTERVAL.min(self.max_bytes / 16) {
            return Ok(());
        }
        self.unmeasured.store(0, Ordering::Relaxed);
        let cache = self.cache.clone();
        let max_bytes = Some(self.max_bytes.saturating_sub(bytes) / 16 * 15);
        let pruned = blocking(move || cache.prune(PruneLimits { max_bytes, older_than: None })).await?;
        if pruned.entries > 0 {
            tracing::debug!(entries = pruned.entries, bytes = pruned.bytes, "the package cache was pruned");
        }
        Ok(())
    }
}

async fn run(
    downloads: &Downloads,
    remote: &RemoteFile,
    upstream: &Upstream,
    guest: &Guest,
    admission: &Admission,
    progress: &watch::Sender<Progress>,
) -> Result<(), MirrorError> {
    let _slot = downloads.slots.acquire().await.map_err(|_| MirrorError::Interrupted)?;
    let new = loop {
        let (cache, hash) = (downloads.cache.clone(), remote.hash.clone());
        match blocking(move || cache.claim(&hash)).await? {
            Claim::Complete => return Ok(()),
            Claim::New(new) => break new,
            // Another process downloads the file.
            Claim::Busy => sleep(BUSY_INTERVAL).await,
        }
    };
    let bytes = download(downloads, remote, upstream, new, progress).await;
    let cost = *bytes.as_ref().unwrap_or(&0);
    guest.charge(admission, cost_of_bytes(cost));
    bytes.map(drop)
}

/// Returns the size of the file.
async fn download(
    downloads: &Downloads,
    remote: &RemoteFile,
    upstream: &Upstream,
    new: NewFile,
    progress: &watch::Sender<Progress>,
) -> Result<u64, MirrorError> {
    let max_bytes = MAX_BYTES.min(downloads.max_bytes / 4);
    let mut response = upstream.get(&remote.url, "*/*", "identity", None).await?;
    if response.status() != reqwest::StatusCode::OK {
        return Err(MirrorError::Status(response.status().as_u16()));
    }
    // Unpacked content would not have the hash of the index.
    if response.headers().get(reqwest::header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(MirrorError::Malformed("the registry compresses files".into()));
    }
    let length = response.content_length();
    if length.is_some_and(|length| length > max_bytes) {
        return Err(MirrorError::TooLarge);
    }
    let max_bytes = length.unwrap_or(UNKNOWN_BYTES.min(max_bytes));
    let space = u32::try_from(max_bytes >> 20).unwrap_or(u32::MAX);
    let _space = downloads.space.acquire_many(space).await.map_err(|_| MirrorError::Interrupted)?;
    downloads.make_room(max_bytes).await?;
    let file = Arc::new(new.file()?);
    let mut hasher = Hasher::new(remote.hash.algorithm());
    let mut written = 0;
    let mut buffer = Vec::with_capacity(WRITE_BYTES);
    loop {
        let chunk = Upstream::chunk(&mut response).await?;
        let is_end = chunk.is_none();
        if let Some(chunk) = chunk {
            hasher.update(chunk.as_ref());
            buffer.extend_from_slice(chunk.as_ref());
        }
        if written + buffer.len() as u64 > max_bytes {
            return Err(MirrorError::TooLarge);
        }
        if buffer.len() >= WRITE_BYTES || (is_end && !buffer.is_empty()) {
            let part = std::mem::replace(&mut buffer, Vec::with_capacity(WRITE_BYTES));
            written += part.len() as u64;
            let target = Arc::clone(&file);
            blocking(move || (&*target).write_all(&part)).await?;
            progress.send_replace(Progress::Running { file: Arc::clone(&file), written, length });
        }
        if is_end {
            break;
        }
    }
    if length.is_some_and(|length| length != written) {
        return Err(MirrorError::Interrupted);
    }
    if !hasher.matches(&remote.hash) {
        tracing::warn!(package = remote.package, "a file of the registry does not have the hash in its index");
        return Err(MirrorError::WrongHash);
    }
    blocking(move || new.commit()).await?;
    Ok(written)
}
