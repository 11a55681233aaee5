//! The thread that owns the connection: takes what waits, and commits it together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use tokio::sync::{mpsc, oneshot};

use super::database::Database;
use super::{AuditRecord, SessionRecord, StoreError};
use crate::audit::{AuditEvent, AuditKind};
use crate::session::SessionId;

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

/// The audit is trimmed once in so many rows.
const TRIMMED_EVERY: u64 = 1000;

pub(super) struct Writer {
    database: Database,
    jobs: mpsc::Receiver<Job>,
    dropped: Arc<AtomicU64>,
    audit_rows: u64,
    since_trimmed: u64,
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
        failing: Arc<AtomicBool>,
        audit_rows: u64,
    ) -> Self {
        // As if it were time: rows may be left of a server that did not come to it.
        Self { database, jobs, dropped, audit_rows, since_trimmed: TRIMMED_EVERY, failing }
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
            insert(&transaction, event)?;
        }
        self.since_trimmed += events.len() as u64;
        if self.since_trimmed >= TRIMMED_EVERY {
            let keep = i64::try_from(self.audit_rows).unwrap_or(i64::MAX);
            transaction.execute("DELETE FROM audit WHERE number <= (SELECT max(number) FROM audit) - ?1", [keep])?;
            self.since_trimmed = 0;
        }
        transaction.commit()
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
                let _ = reply.send(self.audit(session.as_ref(), limit).map_err(Into::into));
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

    fn audit(&self, session: Option<&SessionId>, limit: u32) -> rusqlite::Result<Vec<AuditRecord>> {
        let of_session = if session.is_some() { "WHERE session = ?1" } else { "WHERE ?1 IS NULL" };
        let mut statement = self.database.connection.prepare_cached(&format!(
            "SELECT time_ms, principal, session, kind, outcome, duration_ms, detail FROM audit {of_session}
             ORDER BY number DESC LIMIT ?2"
        ))?;
        let rows = statement.query_map(params![session.map(SessionId::as_str), limit], |row| {
            Ok(AuditRecord {
                time_ms: row.get(0)?,
                principal: row.get(1)?,
                session: row.get(2)?,
                kind: row.get(3)?,
                outcome: row.get(4)?,
                duration_ms: row.get(5)?,
                detail: serde_json::from_str(&row.get::<_, String>(6)?).unwrap_or_default(),
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

fn insert(transaction: &Transaction<'_>, event: &AuditEvent) -> rusqlite::Result<()> {
    let duration_ms = event.duration.map(|duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
    transaction
        .prepare_cached(
            "INSERT INTO audit (time_ms, principal, session, kind, outcome, duration_ms, detail)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![
            event.time_ms,
            event.principal.as_ref().map(crate::session::Principal::name),
            event.session.as_ref().map(SessionId::as_str),
            event.kind.name(),
            event.outcome,
            duration_ms,
            event.detail.to_string(),
        ])?;
    Ok(())
}
