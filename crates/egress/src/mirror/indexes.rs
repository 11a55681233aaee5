//! Documents of indexes: from the cache while they are fresh, then confirmed or replaced by the registry. A document that
//! cannot be confirmed is still served, so that installations work offline.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::Write as _;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use flate2::write::GzDecoder;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE};
use reqwest::{Response, StatusCode, Url};
use ringfence_core::sync::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::budget::UNKNOWN_NAME_COST;
use super::cache::PackageCache;
use super::error::MirrorError;
use super::guest::{Admission, Guest};
use super::hash;
use super::python_index::MalformedIndex;
use super::upstream::{Upstream, Validators};

/// Time for which a document is served without a request to the registry.
const FRESH: Duration = Duration::from_secs(300);
/// The same for a package that the registry did not know.
const MISSING_FRESH: Duration = Duration::from_secs(60);
/// Timeout for a document, from the wait for the budget to the last byte.
const TIMEOUT: Duration = Duration::from_secs(90);
/// The same if an older copy can be served instead.
const STALE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a document.
const MAX_BYTES: usize = 96 << 20;
/// Larger documents are read by few tasks at a time.
const LARGE_BYTES: usize = 4 << 20;
const MAX_LARGE: usize = 2;
/// Maximum number of lists of files that are in memory.
const MAX_READERS: usize = 16;
/// Maximum size of the header of a stored document.
const MAX_HEADER: usize = 8 << 10;

/// The response of a registry in the form in which the mirror stores it.
#[derive(Debug)]
pub(super) struct Parsed {
    /// The document for guests, in each of its formats.
    pub(super) pages: Vec<Vec<u8>>,
    /// The files with their URLs at the registry, as JSON.
    pub(super) files: Vec<u8>,
}

/// A requested document.
pub(super) struct Query<'a> {
    pub(super) upstream: &'a Upstream,
    pub(super) url: Url,
    /// The package and its ecosystem, for the log.
    pub(super) package: String,
    pub(super) accept: &'static str,
    /// Distinguishes documents of the same URL.
    pub(super) form: &'static str,
}

impl Query<'_> {
    fn key(&self) -> String {
        hash::key(&[self.url.as_str(), self.form])
    }
}

/// A stored document. Its content stays on disk, because a slow guest could keep many of them in memory.
#[derive(Debug)]
pub(super) struct Document {
    header: Header,
    file: Arc<File>,
    start: u64,
    confirmed: SystemTime,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Header {
    /// Whether the registry knows the package.
    is_found: bool,
    validators: Validators,
    /// Identifies the content for guests.
    digest: String,
    /// The sizes of the pages, which follow the header.
    page_bytes: Vec<u64>,
    /// The size of the list of files, which follows the pages.
    files_bytes: u64,
}

impl Document {
    /// Reads the header. `None` if the file is damaged.
    fn read(file: File, metadata: &Metadata) -> Option<Self> {
        let mut head = vec![0; MAX_HEADER.min(usize::try_from(metadata.len()).ok()?)];
        file.read_exact_at(&mut head, 0).ok()?;
        let end = head.iter().position(|&byte| byte == b'\n')?;
        let header: Header = serde_json::from_slice(&head[..end]).ok()?;
        let start = end as u64 + 1;
        let end = header.page_bytes.iter().try_fold(start, |end, size| end.checked_add(*size))?;
        let is_complete = end.checked_add(header.files_bytes)? == metadata.len();
        let confirmed = metadata.modified().ok()?;
        is_complete.then(|| Self { header, file: Arc::new(file), start, confirmed })
    }

    fn is_fresh(&self) -> bool {
        let limit = if self.header.is_found { FRESH } else { MISSING_FRESH };
        // A time in the future is that of another clock.
        SystemTime::now().duration_since(self.confirmed).is_ok_and(|age| age < limit)
    }

    fn found(self) -> Result<Self, MirrorError> {
        if self.header.is_found { Ok(self) } else { Err(MirrorError::Missing) }
    }

    pub(super) fn digest(&self) -> &str {
        &self.header.digest
    }

    /// Returns a page for guests as a part of a file.
    pub(super) fn page(&self, index: usize) -> (Arc<File>, Range<u64>) {
        let sizes = &self.header.page_bytes;
        let start = self.start + sizes.iter().take(index).sum::<u64>();
        (Arc::clone(&self.file), start..start + sizes.get(index).copied().unwrap_or_default())
    }

    fn files_range(&self) -> Range<u64> {
        let start = self.start + self.header.page_bytes.iter().sum::<u64>();
        start..start + self.header.files_bytes
    }
}

/// Reads a part of a file.
pub(super) fn read_part(file: &File, range: Range<u64>) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(range.end - range.start).map_err(std::io::Error::other)?];
    file.read_exact_at(&mut bytes, range.start)?;
    Ok(bytes)
}

/// Serves documents of all registries.
#[derive(Debug)]
pub(super) struct Indexes {
    cache: PackageCache,
    /// One task at a time requests a document; the others wait and use its result.
    locks: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
    large: Arc<Semaphore>,
    /// Limits the documents that are read to find a file.
    readers: Semaphore,
}

impl Indexes {
    pub(super) fn new(cache: PackageCache) -> Self {
        let (large, readers) = (Arc::new(Semaphore::new(MAX_LARGE)), Semaphore::new(MAX_READERS));
        Self { cache, locks: Mutex::default(), large, readers }
    }

    /// Returns a document if it can be served without a request to the registry.
    pub(super) async fn fresh(&self, query: &Query<'_>) -> Result<Option<Document>, MirrorError> {
        let stored = self.stored(&query.key()).await?;
        Ok(stored.filter(|stored| stored.header.is_found && stored.is_fresh()))
    }

    /// Returns a document, from the cache or from the registry.
    pub(super) async fn document(
        &self,
        guest: &Guest,
        admission: &Admission,
        query: &Query<'_>,
        parse: impl FnOnce(&str, &[u8], &Url) -> Result<Parsed, MalformedIndex> + Send + 'static,
    ) -> Result<Document, MirrorError> {
        let key = query.key();
        if let Some(stored) = self.stored(&key).await?
            && stored.is_fresh()
        {
            return stored.found();
        }
        let lock = self.lock(&key);
        let _guard = timeout(TIMEOUT, lock.lock()).await.map_err(|_| MirrorError::Timeout)?;
        let stored = self.stored(&key).await?;
        let (stored, limit) = match stored {
            Some(stored) if stored.is_fresh() => return stored.found(),
            Some(stored) if stored.header.is_found => (Some(stored), STALE_TIMEOUT),
            _ => (None, TIMEOUT),
        };
        let validators = stored.as_ref().map(|stored| stored.header.validators.clone());
        let fetch = self.fetch(guest, admission, query, validators.as_ref(), &key, parse);
        let outcome = timeout(limit, fetch).await.unwrap_or(Err(MirrorError::Timeout));
        guest.record(&query.package, Some(&query.url), &outcome);
        match (outcome, stored) {
            (Ok(Some(document)), _) => Ok(document),
            (Ok(None), Some(stored)) => {
                let (cache, key) = (self.cache.clone(), key.clone());
                blocking(move || cache.confirm_index(&key)).await?;
                Ok(stored)
            }
            (Ok(None), None) => Err(MirrorError::Status(StatusCode::NOT_MODIFIED.as_u16())),
            (Err(MirrorError::Missing), _) => {
                guest.charge(admission, UNKNOWN_NAME_COST);
                let missing = Parsed { pages: Vec::new(), files: Vec::new() };
                self.store(&key, Validators::default(), missing, Found::No).await?;
                Err(MirrorError::Missing)
            }
            (Err(error), Some(stored)) if error.allows_stale() => {
                tracing::debug!(package = query.package, %error, "a stale index document is served");
                Ok(stored)
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Returns `None` if the stored document is still current.
    async fn fetch(
        &self,
        guest: &Guest,
        admission: &Admission,
        query: &Query<'_>,
        validators: Option<&Validators>,
        key: &str,
        parse: impl FnOnce(&str, &[u8], &Url) -> Result<Parsed, MalformedIndex> + Send + 'static,
    ) -> Result<Option<Document>, MirrorError> {
        let _admitted = guest.admit(admission).await?;
        let response = query.upstream.get(&query.url, query.accept, "gzip", validators).await?;
        if response.status() == StatusCode::NOT_MODIFIED {
            return Ok(None);
        }
        let validators = Validators::of(&response);
        let url = response.url().clone();
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let content_type = content_type.unwrap_or_default().to_owned();
        let (body, large) = self.read(response).await?;
        // A caller that gives up does not end the work.
        let (parsed, _large) = blocking(move || Ok((parse(&content_type, &body, &url), large))).await?;
        let parsed = parsed.map_err(|error| MirrorError::Malformed(error.to_string()))?;
        self.store(key, validators, parsed, Found::Yes).await.map(Some)
    }

    /// Reads a document. A large one has a permit, which is needed as long as the document is in memory.
    async fn read(&self, mut response: Response) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), MirrorError> {
        let encoding = response.headers().get(CONTENT_ENCODING).map(|value| value.as_bytes().to_ascii_lowercase());
        let mut body = match encoding.as_deref() {
            None | Some(b"" | b"identity") => Decoder::Plain(Vec::new()),
            Some(b"gzip") => Decoder::Gzip(Box::new(GzDecoder::new(Vec::new()))),
            Some(_) => return Err(MirrorError::Malformed("its content encoding is unknown".into())),
        };
        let mut large = None;
        while let Some(chunk) = Upstream::chunk(&mut response).await? {
            body.write(chunk.as_ref())?;
            if body.len() > MAX_BYTES {
                return Err(MirrorError::TooLarge);
            }
            if large.is_none() && body.len() > LARGE_BYTES {
                large = Some(Arc::clone(&self.large).acquire_owned().await.map_err(|_| MirrorError::TooLarge)?);
            }
        }
        Ok((body.finish()?, large))
    }

    async fn store(
        &self,
        key: &str,
        validators: Validators,
        parsed: Parsed,
        found: Found,
    ) -> Result<Document, MirrorError> {
        let (cache, owned_key) = (self.cache.clone(), key.to_owned());
        blocking(move || {
            let header = Header {
                is_found: found == Found::Yes,
                validators,
                digest: hash::key(&parsed.pages)[..32].to_owned(),
                page_bytes: parsed.pages.iter().map(|page| page.len() as u64).collect(),
                files_bytes: parsed.files.len() as u64,
            };
            let mut head = serde_json::to_vec(&header)?;
            head.push(b'\n');
            let pages = parsed.pages.iter().map(Vec::as_slice);
            let parts: Vec<&[u8]> =
                [head.as_slice()].into_iter().chain(pages).chain([parsed.files.as_slice()]).collect();
            cache.write_index(&owned_key, &parts)
        })
        .await?;
        self.stored(key).await?.ok_or(MirrorError::Interrupted)
    }

    async fn stored(&self, key: &str) -> Result<Option<Document>, MirrorError> {
        let (cache, key) = (self.cache.clone(), key.to_owned());
        blocking(move || {
            let opened = cache.open_index(&key)?;
            Ok(opened.and_then(|(file, metadata)| Document::read(file, &metadata)))
        })
        .await
    }

    /// Reads the files of a package, and returns what `select` makes of them.
    pub(super) async fn files<T, S>(
        &self,
        document: &Document,
        select: impl FnOnce(T) -> S + Send + 'static,
    ) -> Result<S, MirrorError>
    where
        T: serde::de::DeserializeOwned,
        S: Send + 'static,
    {
        let _reader = self.readers.acquire().await.map_err(|_| MirrorError::Interrupted)?;
        let (file, range) = (Arc::clone(&document.file), document.files_range());
        blocking(move || Ok(select(serde_json::from_slice(&read_part(&file, range)?)?))).await
    }

    fn lock(&self, key: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock();
        if let Some(lock) = locks.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::default();
        locks.insert(key.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Yes,
    No,
}

/// Collects a body, and unpacks it while it is received.
enum Decoder {
    Plain(Vec<u8>),
    Gzip(Box<GzDecoder<Vec<u8>>>),
}

impl Decoder {
    fn write(&mut self, chunk: &[u8]) -> Result<(), MirrorError> {
        match self {
            Self::Plain(body) => body.extend_from_slice(chunk),
            Self::Gzip(decoder) => {
                // Small parts, so that a chunk that unpacks to a large text is noticed in time.
                for part in chunk.chunks(4096) {
                    decoder.write_all(part).map_err(|error| MirrorError::Malformed(error.to_string()))?;
                    if decoder.get_ref().len() > MAX_BYTES {
                        return Err(MirrorError::TooLarge);
                    }
                }
            }
        }
        Ok(())
    }

    fn len(&self) -> usize {
        match self {
            Self::Plain(body) => body.len(),
            Self::Gzip(decoder) => decoder.get_ref().len(),
        }
    }

    fn finish(self) -> Result<Vec<u8>, MirrorError> {
        match self {
            Self::Plain(body) => Ok(body),
            Self::Gzip(decoder) => decoder.finish().map_err(|error| MirrorError::Malformed(error.to_string())),
        }
    }
}

/// Runs work that reads or writes the disk, or that parses large documents.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, MirrorError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(MirrorError::from),
        Err(_) => Err(MirrorError::Interrupted),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpListener;

    use super::*;
    use crate::decision::DecisionLog;

    /// Serves one document of this size; returns its URL.
    fn serve_document(size: usize) -> Url {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/simple/foo/", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n").unwrap();
            stream.write_all(&vec![b' '; size]).unwrap();
        });
        Url::parse(&url).unwrap()
    }

    #[tokio::test]
    async fn large_documents_count_while_they_are_parsed() {
        let directory = tempfile::tempdir().unwrap();
        let cache = PackageCache::in_directory(directory.path());
        cache.create().unwrap();
        let indexes = Indexes::new(cache);
        let (guest, admission) = (Guest::new(DecisionLog::bounded(8).0), Admission::new());
        for (size, expected) in [(LARGE_BYTES, MAX_LARGE), (LARGE_BYTES + 1, MAX_LARGE - 1)] {
            let url = serve_document(size);
            let upstream = Upstream::new([url.as_str()].into_iter(), &[]).unwrap();
            let query = Query { upstream: &upstream, url, package: "pypi/foo".into(), accept: "*/*", form: "simple" };
            let large = Arc::clone(&indexes.large);
            let parse = move |_: &str, _: &[u8], _: &Url| {
                Ok(Parsed { pages: vec![large.available_permits().to_string().into_bytes()], files: Vec::new() })
            };
            let document = indexes.document(&guest, &admission, &query, parse).await.unwrap();
            let (file, range) = document.page(0);
            assert_eq!(read_part(&file, range).unwrap(), expected.to_string().into_bytes());
        }
        assert_eq!(indexes.large.available_permits(), MAX_LARGE);
    }
}
