//! The thread that owns the connection: takes queued jobs and commits them together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ringfence_core::{AuditEvent, AuditKind};
use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use crate::audit_writes;
use crate::congestion::Congestion;
use crate::database::Database;
use crate::error::StoreError;

pub(crate) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;
pub(crate) type Write = Box<dyn FnOnce(&Transaction<'_>) -> rusqlite::Result<()> + Send>;
pub(crate) type Query = Box<dyn FnOnce(&mut Connection) + Send>;

pub(crate) enum Job {
    /// Records an audit event.
    Record(AuditEvent),
    /// Writes in the transaction of the batch.
    Write(Write, Reply<()>),
    /// Uses the connection after all jobs before it, in a separate transaction. It sends its reply itself.
    Query(Query),
    Close(Reply<()>),
}

/// Maximum number of jobs in one commit.
const MAX_BATCH: usize = 1024;

/// Time that events wait for more events: one commit per event would take as long as the calls that they describe.
const LINGER: Duration = Duration::from_millis(20);

/// Number of events after which the audit rows are counted again.
const COUNT_INTERVAL: u64 = 1000;

/// Surplus events are deleted in small batches, so that no other write waits for them: per write twice the number of
/// added events, plus this many.
const MIN_TRIMMED: usize = 64;

/// The part of the store that the writer shares with the callers.
#[derive(Default)]
pub(crate) struct QueueState {
    /// Number of events that were not recorded; written to the audit with the next batch.
    pub(crate) dropped_events: AtomicU64,
    pub(crate) congestion: Congestion,
    /// The last batch could not be written.
    pub(crate) is_failing: AtomicBool,
}

pub(crate) struct Writer {
    database: Database,
    jobs: mpsc::Receiver<Job>,
    state: Arc<QueueState>,
    max_audit_rows: u64,
    events_since_count: u64,
    /// Numbers of the audit events to delete, the newest first.
    surplus: Vec<i64>,
}

/// The jobs of one commit, and at most one job that follows it.
#[derive(Default)]
struct Batch {
    events: Vec<AuditEvent>,
    writes: Vec<Write>,
    replies: Vec<Reply<()>>,
    next: Option<Next>,
}

enum Next {
    Query(Query),
    Close(Reply<()>),
}

impl Writer {
    pub(crate) fn new(
        database: Database,
        jobs: mpsc::Receiver<Job>,
        state: Arc<QueueState>,
        max_audit_rows: u64,
    ) -> Self {
        // The rows are counted at the first event: an earlier server may have left too many.
        Self { database, jobs, state, max_audit_rows, events_since_count: COUNT_INTERVAL, surplus: Vec::new() }
    }

    /// Handles jobs until the store is closed, or all senders are dropped.
    pub(crate) fn run(mut self) {
        let mut close_reply = None;
        while let Some(first) = self.jobs.blocking_recv() {
            if matches!(first, Job::Record(_)) {
                // A caller that waits for a reply wakes this thread.
                std::thread::park_timeout(LINGER);
            }
            let Batch { events, writes, replies, next } = self.collect(first);
            let result = self.write(events, writes);
            for reply in replies {
                let _ = reply.send(result.as_ref().copied().map_err(|error| StoreError::Write(error.to_string())));
            }
            match next {
                None => {}
                Some(Next::Query(query)) => query(&mut self.database.connection),
                Some(Next::Close(reply)) => {
                    close_reply = Some(reply);
                    break;
                }
            }
        }
        drop(self.jobs);
        self.database.close();
        if let Some(reply) = close_reply {
            let _ = reply.send(Ok(()));
        }
    }

    /// Takes further jobs from the queue, as far as they fit into one commit.
    fn collect(&mut self, first: Job) -> Batch {
        let mut batch = Batch::default();
        let mut job = Some(first);
        while let Some(current) = job {
            match current {
                Job::Record(event) => batch.events.push(event),
                Job::Write(write, reply) => {
                    batch.writes.push(write);
                    batch.replies.push(reply);
                }
                Job::Query(query) => batch.next = Some(Next::Query(query)),
                Job::Close(reply) => batch.next = Some(Next::Close(reply)),
            }
            let is_full = batch.events.len() + batch.writes.len() >= MAX_BATCH;
            job = if is_full || batch.next.is_some() { None } else { self.jobs.try_recv().ok() };
        }
        if self.jobs.is_empty() {
            self.state.congestion.end();
        }
        batch
    }

    /// Commits the events and writes of a batch. If that fails, the events count as dropped.
    fn write(&mut self, mut events: Vec<AuditEvent>, writes: Vec<Write>) -> rusqlite::Result<()> {
        let dropped = self.state.dropped_events.swap(0, Ordering::Relaxed);
        let unrecorded = dropped + events.len() as u64;
        if dropped > 0 {
            events.push(AuditEvent::new(AuditKind::EventsDropped, "lost").with("events", dropped));
        }
        if events.is_empty() && writes.is_empty() {
            return Ok(());
        }
        let result = self.commit(&events, writes);
        if result.is_err() {
            self.state.dropped_events.fetch_add(unrecorded, Ordering::Relaxed);
        }
        self.report(result.as_ref().err());
        result
    }

    fn commit(&mut self, events: &[AuditEvent], writes: Vec<Write>) -> rusqlite::Result<()> {
        let transaction = self.database.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for write in writes {
            write(&transaction)?;
        }
        for event in events {
            audit_writes::insert(&transaction, event)?;
        }
        let trimmed = self.surplus.len().min(events.len() * 2 + MIN_TRIMMED);
        audit_writes::delete(&transaction, &self.surplus[self.surplus.len() - trimmed..])?;
        self.events_since_count += events.len() as u64;
        let margin = self.max_audit_rows / 10;
        if self.surplus.len() == trimmed && self.events_since_count >= COUNT_INTERVAL.min(margin) {
            self.events_since_count = 0;
            let surplus = if audit_writes::count(&transaction)? > self.max_audit_rows + margin {
                audit_writes::excess(&transaction, self.max_audit_rows)?
            } else {
                Vec::new()
            };
            transaction.commit()?;
            self.surplus = surplus;
            // They are deleted from the end, the oldest first.
            self.surplus.reverse();
            return Ok(());
        }
        transaction.commit()?;
        self.surplus.truncate(self.surplus.len() - trimmed);
        Ok(())
    }

    /// Logs the first failure and the first success after it.
    fn report(&self, error: Option<&rusqlite::Error>) {
        let was_failing = self.state.is_failing.swap(error.is_some(), Ordering::Relaxed);
        if let Some(error) = error {
            self.database.monitor.observe(error);
        }
        match error {
            Some(error) if !was_failing => tracing::error!("the state database cannot be written: {error}"),
            None if was_failing => tracing::info!("the state database can be written again"),
            _ => {}
        }
    }
}
