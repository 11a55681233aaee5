//! A read-only mirror of package registries for sandboxes: the simple API of Python indexes, and npm.
//!
//! The host serves it on the loopback interface of each sandbox and fills it from the registries that the operator uses.
//! Invariants:
//! - A guest reads only; the cache and its locks are outside of every sandbox.
//! - A registry receives GET requests with the names of well-formed packages. No field, query or body of a guest is
//!   forwarded. Requests are limited per sandbox and in total, and each leaves a [`crate::Decision`].
//! - A file is complete and has the hash of its index before its last byte is served.
//! - Connections go only to registries and to the hosts that their indexes name.
//!
//! The mirror has no credentials: packages that need a login are not available.

mod budget;
mod byte_range;
mod cache;
mod connection;
mod downloads;
mod error;
mod guest;
mod hash;
mod indexes;
mod names;
mod packument;
mod programs;
mod python_index;
mod registries;
mod response;
mod route;
mod service;
#[cfg(test)]
mod tests;
mod upstream;

use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;

use ringfence_core::sync::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OnceCell};
use tokio::time::Instant;

use crate::decision::DecisionLog;
pub use cache::{CacheUsage, PackageCache, PruneLimits, Pruned};
use downloads::Downloads;
use guest::{Admission, Guest};
use indexes::Indexes;
use programs::Program;
use registries::Registries;
pub use registries::{NpmRegistries, PythonIndexes, RegistrySource};

/// The parameters of a mirror.
#[derive(Debug)]
pub struct MirrorSettings {
    /// The cache directory of ringfence. The mirror uses a directory below it.
    pub cache_directory: PathBuf,
    /// Maximum size of the cache in bytes.
    pub max_bytes: u64,
    pub registries: RegistrySource,
}

/// The mirror of this process. Cheap to clone; all sandboxes share it. Dropping the last clone ends its downloads.
#[derive(Clone)]
pub struct Mirror(Arc<Inner>);

pub(crate) struct Inner {
    cache: PackageCache,
    /// Set once the directories of the cache exist.
    prepared: OnceCell<()>,
    registries: Registries,
    indexes: Indexes,
    downloads: Arc<Downloads>,
    admission: Arc<Admission>,
    /// The uv that sandboxes may use.
    uv: Option<&'static Program>,
    /// The time of the last failure to provide uv.
    uv_failure: Mutex<Option<Instant>>,
    /// Locked while uv is unpacked.
    unpacking: AsyncMutex<()>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.downloads.abort();
    }
}

/// Clones are equal.
impl PartialEq for Mirror {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for Mirror {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Mirror").field("cache", &self.0.cache).finish_non_exhaustive()
    }
}

impl Mirror {
    /// Creates a mirror. The directories of its cache are made, and the registries are determined, when a package is
    /// requested.
    pub fn new(settings: MirrorSettings) -> Self {
        let cache = PackageCache::in_directory(&settings.cache_directory);
        Self(Arc::new(Inner {
            prepared: OnceCell::new(),
            registries: Registries::new(settings.registries),
            indexes: Indexes::new(cache.clone()),
            downloads: Arc::new(Downloads::new(cache.clone(), settings.max_bytes)),
            admission: Arc::new(Admission::new()),
            uv: programs::UV,
            uv_failure: Mutex::new(None),
            unpacking: AsyncMutex::new(()),
            cache,
        }))
    }

    /// Returns the directory in which uv appears after a sandbox has requested it. The caller mounts it in
    /// sandboxes, read-only. `None` if there is no uv for this architecture, or the cache cannot be used.
    pub fn uv_directory(&self) -> Option<PathBuf> {
        let created = programs::create_directory(self.0.uv?, &self.0.cache);
        created.inspect_err(|error| tracing::debug!("sandboxes have no uv: the cache cannot be used: {error}")).ok()
    }

    /// Serves the listener of one sandbox. When the future is dropped, all its connections are closed.
    pub async fn serve(&self, listener: TcpListener, log: DecisionLog) -> io::Result<()> {
        connection::serve(Arc::clone(&self.0), listener, Arc::new(Guest::new(log))).await
    }
}
