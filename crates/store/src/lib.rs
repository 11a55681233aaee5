//! What outlives the server: its sessions, the servers it hosts, what callers keep, and the audit, in one database in the
//! state directory.
//!
//! One thread owns the connection and writes in batches; what was answered is committed, and survives the death of the
//! process at any moment. Several servers may share a directory: the locks of `SQLite` keep them apart, and one of our own
//! keeps a broken database from being replaced under those that use it.
//! Recording for the audit never waits: what does not fit the queue is counted, and the count recorded. Events are
//! written together, so the last of them, of some milliseconds, can be lost when the process is killed.

mod audit;
mod audit_log;
mod catalogues;
mod code_sessions;
mod congestion;
mod database;
mod directory;
mod error;
mod locks;
mod log;
mod loss;
mod memories;
mod migrations;
mod newer;
mod not_kept;
mod pins;
mod replacement;
mod salvage;
mod saved_tools;
mod servers;
mod writer;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

pub use audit::{AuditFilter, AuditRecord};
pub use audit_log::Audit;
pub use catalogues::StoredCatalogue;
pub use error::StoreError;
pub use loss::{Loss, losses};
pub use memories::{Memory, MemoryInfo, MemorySaved};
pub use not_kept::NotKept;
pub use pins::{Pin, PinKind};
pub use saved_tools::{SavedTool, SavedToolInfo};
pub use servers::{StoredServer, Taken};

use congestion::Congestion;
use ringfence_core::AuditEvent;
use ringfence_core::SessionId;
use writer::{Job, Question, Writer};

/// Jobs that may wait for the writer.
const QUEUED: usize = 4096;

/// How long whoever asks how the store fares waits for a write.
const CHECK_PATIENCE: Duration = Duration::from_secs(2);

/// Events of the audit that are kept, shared fairly between principals (`audit`).
const AUDIT_ROWS: u64 = 100_000;

/// A session as it is remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRecord {
    pub id: SessionId,
    pub principal: String,
    pub template: String,
    pub flavor: String,
    /// Seconds since the epoch.
    pub created: u64,
    /// Its launcher and its init, for a next server.
    pub address: String,
}

/// Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    jobs: Option<mpsc::Sender<Job>>,
    dropped: Arc<AtomicU64>,
    congestion: Arc<Congestion>,
    /// That events are lost is said once.
    told: AtomicBool,
    /// The last write failed.
    failing: Arc<AtomicBool>,
    writer: Mutex<Option<JoinHandle<()>>>,
    waker: Thread,
}

impl Store {
    /// Opens the database in `directory`; both are made if they are not there.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        Self::with_bounds(directory, QUEUED, AUDIT_ROWS)
    }

    fn with_bounds(directory: &Path, queued: usize, audit_rows: u64) -> Result<Self, StoreError> {
        directory::prepare(directory)?;
        let database = database::open(directory)?;
        let (jobs, receiver) = mpsc::channel(queued);
        let dropped = Arc::new(AtomicU64::new(0));
        let failing = Arc::new(AtomicBool::new(false));
        let congestion = Arc::new(Congestion::default());
        let shared = (Arc::clone(&dropped), Arc::clone(&congestion));
        let writer = Writer::new(database, receiver, shared.0, shared.1, Arc::clone(&failing), audit_rows);
        let thread = std::thread::Builder::new().name("store".into()).spawn(move || writer.run());
        let thread = thread.map_err(|source| StoreError::Directory { path: directory.to_owned(), source })?;
        Ok(Self(Arc::new(Inner {
            jobs: Some(jobs),
            dropped,
            congestion,
            told: AtomicBool::new(false),
            failing,
            waker: thread.thread().clone(),
            writer: Mutex::new(Some(thread)),
        })))
    }

    /// Records an event if there is room in the queue; never waits.
    pub fn record(&self, event: AuditEvent) {
        let jobs = self.0.jobs.as_ref().filter(|jobs| self.0.congestion.admits(&event, jobs));
        if jobs.is_some_and(|jobs| jobs.try_send(Job::Record(event)).is_ok()) {
            return;
        }
        self.0.dropped.fetch_add(1, Ordering::Relaxed);
        if !self.0.told.swap(true, Ordering::Relaxed) {
            tracing::warn!("events of the audit are lost: more come than can be written; their number is recorded");
        }
    }

    pub async fn upsert_session(&self, session: SessionRecord) -> Result<(), StoreError> {
        self.ask(|reply| Job::Upsert(Box::new(session), reply)).await
    }

    pub async fn remove_session(&self, id: &SessionId) -> Result<(), StoreError> {
        let id = id.clone();
        self.ask(|reply| Job::Remove(id, reply)).await
    }

    /// All sessions, of all servers, the oldest first.
    pub async fn sessions(&self) -> Result<Vec<SessionRecord>, StoreError> {
        self.ask(|reply| Job::Ask(Question::Sessions(reply))).await
    }

    /// The last events, of one session or of all, the newest first.
    pub async fn recent_audit(&self, session: Option<&SessionId>, limit: u32) -> Result<Vec<AuditRecord>, StoreError> {
        let session = session.cloned();
        self.ask(|reply| Job::Ask(Question::Audit { session, limit, reply })).await
    }

    /// The events with a higher number than `after`, of all servers, the oldest first.
    pub async fn audit_after(
        &self,
        after: u64,
        filter: &AuditFilter,
        limit: u32,
    ) -> Result<Vec<AuditRecord>, StoreError> {
        let filter = filter.clone();
        self.with(move |connection| Ok(audit::after(connection, after, &filter, limit)?)).await
    }

    /// Says why nothing can be written, if it is so. Where the last write failed, another is tried.
    pub async fn check(&self) -> Result<(), StoreError> {
        if !self.0.failing.load(Ordering::Relaxed) {
            return Ok(());
        }
        let tried = tokio::time::timeout(CHECK_PATIENCE, self.ask(Job::Try)).await;
        tried.unwrap_or_else(|_| Err(StoreError::Write("it takes too long".into())))
    }

    /// Writes what waits and ends the writer; later calls fail.
    pub async fn close(&self) {
        let _ = self.ask(Job::Close).await;
        let writer = self.0.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer {
            let _ = tokio::task::spawn_blocking(move || writer.join()).await;
        }
    }

    /// Lets the thread that owns the connection do something in a transaction of its own.
    async fn with<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    {
        self.ask(|reply| {
            Job::Ask(Question::Other(Box::new(move |connection| {
                let _ = reply.send(work(connection));
            })))
        })
        .await
    }

    async fn ask<T>(&self, job: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Job) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let jobs = self.0.jobs.as_ref().ok_or(StoreError::Closed)?;
        jobs.send(job(reply)).await.map_err(|_| StoreError::Closed)?;
        self.0.waker.unpark();
        answer.await.map_err(|_| StoreError::Closed)?
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Without a sender the writer writes what waits, and ends.
        self.jobs = None;
        let writer = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer {
            let _ = writer.join();
        }
    }
}

#[cfg(test)]
mod tests;
