//! The handle of the store, by which callers queue work for the writer thread.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use ringfence_core::AuditEvent;
use ringfence_core::sync::Mutex;
use rusqlite::{Connection, Transaction};
use tokio::sync::{mpsc, oneshot};

use crate::backup::BackupSchedule;
use crate::damage::DamageMonitor;
use crate::database::Database;
use crate::directory;
use crate::error::StoreError;
use crate::writer::{Job, QueueState, Reply, Writer};

/// Maximum duration of the write that [`Store::check`] tries.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// The limits of a store and the times of its backups.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Maximum number of jobs that wait for the writer.
    pub(crate) queue_capacity: usize,
    /// Maximum number of audit events, shared fairly between principals.
    pub(crate) max_audit_rows: u64,
    pub(crate) backups: BackupSchedule,
    /// Maximum time to wait for other users of a damaged database; a command needs some milliseconds.
    pub(crate) exclusive_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queue_capacity: 4096,
            max_audit_rows: 100_000,
            backups: BackupSchedule::default(),
            exclusive_timeout: Duration::from_secs(3),
        }
    }
}

/// The state of a server. Clones share one connection.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    jobs: Option<mpsc::Sender<Job>>,
    state: Arc<QueueState>,
    monitor: Arc<DamageMonitor>,
    has_logged_drop: AtomicBool,
    writer: Mutex<Option<JoinHandle<()>>>,
    writer_thread: Thread,
}

impl Store {
    /// Opens the database in `directory`. Creates both if they do not exist. Replaces a damaged database with the newest
    /// backup; [`damage_reports`](crate::damage_reports) returns what was done.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        Self::open_with(directory, Options::default())
    }

    pub(crate) fn open_with(directory: &Path, options: Options) -> Result<Self, StoreError> {
        directory::prepare(directory)?;
        let database = Database::open(directory, options.backups, options.exclusive_timeout)?;
        let monitor = Arc::clone(&database.monitor);
        let state = Arc::<QueueState>::default();
        let (jobs, receiver) = mpsc::channel(options.queue_capacity);
        let writer = Writer::new(database, receiver, Arc::clone(&state), options.max_audit_rows);
        let thread = std::thread::Builder::new().name("store".into()).spawn(move || writer.run());
        let thread = thread.map_err(|source| StoreError::Directory { path: directory.to_owned(), source })?;
        Ok(Self(Arc::new(Inner {
            jobs: Some(jobs),
            state,
            monitor,
            has_logged_drop: AtomicBool::new(false),
            writer_thread: thread.thread().clone(),
            writer: Mutex::new(Some(thread)),
        })))
    }

    /// Records an event if the queue has a free slot; never waits. Dropped events are counted, and the count is
    /// recorded.
    pub fn record(&self, event: AuditEvent) {
        let Inner { state, .. } = &*self.0;
        let admits = |jobs: &&mpsc::Sender<Job>| state.congestion.admits(&event, jobs.capacity(), jobs.max_capacity());
        let jobs = self.0.jobs.as_ref().filter(admits);
        if jobs.is_some_and(|jobs| jobs.try_send(Job::Record(event)).is_ok()) {
            return;
        }
        state.dropped_events.fetch_add(1, Ordering::Relaxed);
        if !self.0.has_logged_drop.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "audit events are dropped because the queue of the writer is full; their number is recorded"
            );
        }
    }

    /// Returns an error if the database cannot be written. Only if the last write failed, another one is tried.
    pub async fn check(&self) -> Result<(), StoreError> {
        if !self.0.state.is_failing.load(Ordering::Relaxed) {
            return Ok(());
        }
        // As much as a session takes, and deleted again.
        let test_write = self.write(|transaction| {
            transaction.execute_batch(
                "INSERT OR REPLACE INTO sessions (id, principal, template, flavor, created, address)
                 VALUES ('', '', '', '', 0, '');
                 DELETE FROM sessions WHERE id = ''",
            )
        });
        let timed_out = |_| Err(StoreError::Write(format!("no result within {} s", CHECK_TIMEOUT.as_secs())));
        tokio::time::timeout(CHECK_TIMEOUT, test_write).await.unwrap_or_else(timed_out)
    }

    /// Writes all queued jobs and closes the database; later calls fail.
    pub async fn close(&self) {
        let _ = self.submit(Job::Close).await;
        let writer = self.0.writer.lock().take();
        if let Some(writer) = writer {
            let _ = tokio::task::spawn_blocking(move || writer.join()).await;
        }
    }

    /// Writes together with the other jobs that are queued. The commit survives the death of the process, but not
    /// always a power cut.
    pub(crate) async fn write(
        &self,
        write: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()> + Send + 'static,
    ) -> Result<(), StoreError> {
        self.submit(|reply| Job::Write(Box::new(write), reply)).await
    }

    /// Runs a function with the connection on the writer thread, after all jobs that are queued before it.
    pub(crate) async fn query<T, F>(&self, query: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    {
        let monitor = Arc::clone(&self.0.monitor);
        self.submit(|reply| {
            Job::Query(Box::new(move |connection| {
                let _ = reply.send(monitor.examine(query(connection)));
            }))
        })
        .await
    }

    async fn submit<T>(&self, job: impl FnOnce(Reply<T>) -> Job) -> Result<T, StoreError> {
        let (reply, result) = oneshot::channel();
        let jobs = self.0.jobs.as_ref().ok_or(StoreError::Closed)?;
        jobs.send(job(reply)).await.map_err(|_| StoreError::Closed)?;
        self.0.writer_thread.unpark();
        result.await.map_err(|_| StoreError::Closed)?
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Without a sender, the writer writes all queued jobs and ends.
        self.jobs = None;
        if let Some(writer) = self.writer.lock().take() {
            let _ = writer.join();
        }
    }
}
