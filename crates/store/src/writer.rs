//! The thread that owns the connection: takes what waits, and commits it together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use tokio::sync::{mpsc, oneshot};

use super::congestion::Congestion;
use super::database::Database;
use super::{AuditRecord, SessionRecord, StoreError, audit};
use ringfence_core::SessionId;
use ringfence_core::{AuditEvent, AuditKind};

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

pub(super) enum Job {
    Record(AuditEvent),
    Upsert(Box<SessionRecord>, Reply<()>),
    Remove(SessionId, Reply<()>),
    /// Writes for its own sake.
    Try(Reply<()>),
    Ask(Question),
    Close(Reply<()>),
}

pub(super) enum Question {
    Sessions(Reply<Vec<SessionRecord>>),
    Audit {
        session: Option<SessionId>,
        limit: u32,
        reply: Reply<Vec<AuditRecord>>,
    },
    /// Something rare, with its own transaction and its own answer.
    Other(Box<dyn FnOnce(&mut Connection) + Send>),
}

/// What one commit holds at most.
const BATCH: usize = 1024;

/// How long events wait for others: a commit for each would take as much time as the calls that they are about.
const LINGER: Duration = Duration::from_millis(20);

/// The audit rows are counted once per this many events.
const COUNTED_EVERY: u64 = 1000;

/// Surplus events are deleted in small batches, so that no other write waits for them: per write twice the number of
/// added events, plus this many.
const TRIMMED_AT_LEAST: usize = 64;

pub(super) struct Writer {
    database: Database,
    jobs: mpsc::Receiver<Job>,
    dropped: Arc<AtomicU64>,
    congestion: Arc<Congestion>,
    audit_rows: u64,
    since_counted: u64,
    /// Events of the audit that are to be deleted, the newest first.
    surplus: Vec<i64>,
    /// The last batch failed: said once, not for each.
    failing: Arc<AtomicBool>,
}

/// What comes after a batch.
#[derive(Default)]
struct After {
    replies: Vec<Reply<()>>,
    question: Option<Question>,
    close: Option<Reply<()>>,
    /// Lost if the batch is not written.
    events: u64,
    /// There was something to write.
    was_tried: bool,
}

impl Writer {
    pub(super) fn new(
        database: Database,
        jobs: mpsc::Receiver<Job>,
        dropped: Arc<AtomicU64>,
        congestion: Arc<Congestion>,
        failing: Arc<AtomicBool>,
        audit_rows: u64,
    ) -> Self {
        // Counted at the first event: an earlier server may have left too many rows.
        let (since_counted, surplus) = (COUNTED_EVERY, Vec::new());
        Self { database, jobs, dropped, congestion, audit_rows, since_counted, surplus, failing }
    }

    pub(super) fn run(mut self) {
        while let Some(first) = self.jobs.blocking_recv() {
            if matches!(first, Job::Record(_)) {
                // Whoever waits for an answer wakes this thread.
                std::thread::park_timeout(LINGER);
            }
            let mut batch = vec![first];
            while batch.len() < BATCH
                && !matches!(batch.last(), Some(Job::Ask(_) | Job::Close(_)))
                && let Ok(next) = self.jobs.try_recv()
            {
                batch.push(next);
            }
            if self.jobs.is_empty() {
                self.congestion.end();
            }
            let mut after = After::default();
            let written = self.write(batch, &mut after);
            if written.is_err() {
                self.dropped.fetch_add(after.events, Ordering::Relaxed);
            }
            if after.was_tried {
                self.tell_failure(written.as_ref().err());
            }
            for reply in after.replies {
                let _ = reply.send(written.as_ref().copied().map_err(|error| StoreError::Write(error.to_string())));
            }
            if let Some(question) = after.question {
                self.answer(question);
            }
            if let Some(reply) = after.close {
                let _ = reply.send(Ok(()));
                return;
            }
        }
    }

    fn write(&mut self, batch: Vec<Job>, after: &mut After) -> rusqlite::Result<()> {
        let (mut events, mut changes) = (Vec::new(), Vec::new());
        for job in batch {
            match job {
                Job::Record(event) => events.push(event),
                Job::Ask(question) => after.question = Some(question),
                Job::Close(reply) => after.close = Some(reply),
                change => changes.push(change),
            }
        }
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        after.events = dropped + events.len() as u64;
        if dropped > 0 {
            events.push(AuditEvent::new(AuditKind::EventsDropped, "lost").with("events", dropped));
        }
        let changes: Vec<Change> = changes.into_iter().filter_map(|job| Change::of(job, &mut after.replies)).collect();
        if events.is_empty() && changes.is_empty() {
            return Ok(());
        }
        after.was_tried = true;
        let transaction = self.database.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for change in &changes {
            change.apply(&transaction)?;
        }
        for event in &events {
            audit::insert(&transaction, event)?;
        }
        let trimmed = self.surplus.len().min(events.len() * 2 + TRIMMED_AT_LEAST);
        audit::delete(&transaction, &self.surplus[self.surplus.len() - trimmed..])?;
        self.since_counted += events.len() as u64;
        let margin = self.audit_rows / 10;
        if self.surplus.len() == trimmed && self.since_counted >= COUNTED_EVERY.min(margin) {
            self.since_counted = 0;
            let found = if audit::count(&transaction)? > self.audit_rows + margin {
                audit::excess(&transaction, self.audit_rows)?
            } else {
                Vec::new()
            };
            transaction.commit()?;
            self.surplus = found;
            // Taken from the end: the oldest first.
            self.surplus.reverse();
            return Ok(());
        }
        transaction.commit()?;
        self.surplus.truncate(self.surplus.len() - trimmed);
        Ok(())
    }

    fn tell_failure(&mut self, error: Option<&rusqlite::Error>) {
        let was_failing = self.failing.swap(error.is_some(), Ordering::Relaxed);
        match error {
            Some(error) if !was_failing => tracing::error!("the state cannot be written: {error}"),
            None if was_failing => tracing::info!("the state can be written again"),
            _ => {}
        }
    }

    fn answer(&mut self, question: Question) {
        match question {
            Question::Sessions(reply) => {
                let _ = reply.send(self.sessions().map_err(Into::into));
            }
            Question::Audit { session, limit, reply } => {
                let recent = audit::recent(&self.database.connection, session.as_ref(), limit);
                let _ = reply.send(recent.map_err(Into::into));
            }
            Question::Other(work) => work(&mut self.database.connection),
        }
    }

    fn sessions(&self) -> rusqlite::Result<Vec<SessionRecord>> {
        let mut statement = self.database.connection.prepare_cached(
            "SELECT id, principal, template, flavor, created, address FROM sessions ORDER BY created, id",
        )?;
        let rows = statement.query_map([], |row| {
            Ok(SessionRecord {
                id: SessionId::from_caller(row.get::<_, String>(0)?),
                principal: row.get(1)?,
                template: row.get(2)?,
                flavor: row.get(3)?,
                created: row.get(4)?,
                address: row.get(5)?,
            })
        })?;
        rows.collect()
    }
}

/// A change of the sessions, without whoever waits for it.
enum Change {
    Upsert(Box<SessionRecord>),
    Remove(SessionId),
    Nothing,
}

impl Change {
    fn of(job: Job, replies: &mut Vec<Reply<()>>) -> Option<Self> {
        let (change, reply) = match job {
            Job::Upsert(record, reply) => (Self::Upsert(record), reply),
            Job::Remove(id, reply) => (Self::Remove(id), reply),
            Job::Try(reply) => (Self::Nothing, reply),
            Job::Record(_) | Job::Ask(_) | Job::Close(_) => return None,
        };
        replies.push(reply);
        Some(change)
    }

    fn apply(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        match self {
            Self::Upsert(record) => {
                let SessionRecord { id, principal, template, flavor, created, address } = &**record;
                transaction
                    .prepare_cached(
                        "INSERT OR REPLACE INTO sessions
                         (id, principal, template, flavor, created, address) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                    )?
                    .execute(params![id.as_str(), principal, template, flavor, created, address])?;
            }
            Self::Remove(id) => {
                transaction.prepare_cached("DELETE FROM sessions WHERE id = ?1")?.execute([id.as_str()])?;
            }
            // As much as a session takes, and gone again.
            Self::Nothing => {
                transaction.execute_batch(
                    "INSERT OR REPLACE INTO sessions (id, principal, template, flavor, created, address)
                     VALUES ('', '', '', '', 0, '');
                     DELETE FROM sessions WHERE id = ''",
                )?;
            }
        }
        Ok(())
    }
}
