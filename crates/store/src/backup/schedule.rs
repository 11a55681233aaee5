//! The thread that makes backups while the database is in use.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use super::{Backups, Cancellation};
use crate::damage::DamageMonitor;
use crate::directory::with_suffix;

/// The times at which backups are made.
#[derive(Debug, Clone)]
pub(crate) struct BackupSchedule {
    /// Minimum age of the newest backup before another one is made.
    pub(crate) interval: Duration,
    /// Time between two checks whether a backup is due; also the time before the first one.
    pub(crate) poll_interval: Duration,
    /// Time before a failed backup is tried again.
    pub(crate) retry_delay: Duration,
    /// Minimum age of the newest backup before another one is made when the store is closed.
    pub(crate) min_age_at_close: Duration,
    /// Maximum duration of one backup.
    pub(crate) timeout: Duration,
    /// Maximum duration of the backup that is made when the store is closed.
    pub(crate) timeout_at_close: Duration,
}

impl Default for BackupSchedule {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(60 * 60),
            poll_interval: Duration::from_secs(60),
            retry_delay: Duration::from_secs(5 * 60),
            min_age_at_close: Duration::from_secs(10 * 60),
            timeout: Duration::from_secs(2 * 60),
            timeout_at_close: Duration::from_secs(5),
        }
    }
}

/// Stops when dropped; a running backup is abandoned.
pub(crate) struct BackupThread {
    is_cancelled: Arc<AtomicBool>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl BackupThread {
    pub(crate) fn start(backups: Backups, schedule: BackupSchedule, monitor: Arc<DamageMonitor>) -> io::Result<Self> {
        let is_cancelled = Arc::<AtomicBool>::default();
        let (stop, stopped) = channel();
        let worker = Worker { backups, schedule, monitor, is_cancelled: Arc::clone(&is_cancelled) };
        let thread = std::thread::Builder::new().name("store-backup".into()).spawn(move || worker.run(&stopped))?;
        Ok(Self { is_cancelled, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for BackupThread {
    fn drop(&mut self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    backups: Backups,
    schedule: BackupSchedule,
    monitor: Arc<DamageMonitor>,
    is_cancelled: Arc<AtomicBool>,
}

impl Worker {
    fn run(&self, stopped: &Receiver<()>) {
        let mut delay = self.schedule.poll_interval;
        let mut saved_version = None;
        while stopped.recv_timeout(delay) == Err(RecvTimeoutError::Timeout) {
            delay = self.schedule.poll_interval;
            let version = FileVersion::of(&self.backups.database);
            if saved_version == Some(version) || !self.backups.is_older_than(self.schedule.interval) {
                continue;
            }
            let cancellation = Cancellation {
                deadline: Instant::now() + self.schedule.timeout,
                is_cancelled: Arc::clone(&self.is_cancelled),
            };
            match self.backups.create(&cancellation) {
                Ok(()) => saved_version = Some(version),
                Err(_) if self.is_cancelled.load(Ordering::Relaxed) => {}
                Err(error) => {
                    delay = self.schedule.retry_delay;
                    error.log(&self.monitor);
                }
            }
        }
    }
}

/// Changes with every commit to the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileVersion([Option<(SystemTime, u64)>; 2]);

impl FileVersion {
    fn of(database: &Path) -> Self {
        let version = |path: &Path| {
            let found = fs::metadata(path).ok()?;
            Some((found.modified().ok()?, found.len()))
        };
        Self([version(database), version(&with_suffix(database, "-wal"))])
    }
}
