//! Detects protected names that guests create in read-write volumes, without blocking the server's async tasks.

use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use ringfence_core::{Access, AuditEvent, AuditKind, Spec, Volume};
use ringfence_sandbox::{NameChange, VolumeWatch};

/// Timeout for a check: a network file system may hang.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The protected names of one sandbox. Cheap to clone; clones share their state.
#[derive(Clone, Default)]
pub enum ProtectedNames {
    /// No volume is writable.
    #[default]
    None,
    Watched(Arc<Mutex<VolumeWatch>>),
    /// The first snapshot failed, so changes cannot be seen.
    Unknown,
}

/// The file system did not respond in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unchecked;

impl Unchecked {
    pub const NOTICE: &str =
        "the protected names in the volumes could not be checked in time: their file system does not respond";
}

impl ProtectedNames {
    /// Takes the first snapshot of the volumes.
    pub async fn begin(volumes: &[Volume]) -> Self {
        if volumes.iter().all(|volume| volume.access == Access::ReadOnly) {
            return Self::None;
        }
        let volumes = volumes.to_vec();
        let snapshot = tokio::task::spawn_blocking(move || VolumeWatch::start(&volumes));
        match tokio::time::timeout(TIMEOUT, snapshot).await {
            Ok(Ok(Some(watch))) => Self::Watched(Arc::new(Mutex::new(watch))),
            Ok(Ok(None)) => Self::None,
            Ok(Err(_)) | Err(_) => Self::Unknown,
        }
    }

    /// Takes the first snapshot and starts a sandbox: normally in this order, so that nothing is missed; with strict
    /// volumes in reverse order, because the placeholders must exist first. The volumes are those of [`writable`].
    pub async fn around<T, E>(
        (volumes, is_strict): (Vec<Volume>, bool),
        start: impl Future<Output = Result<T, E>>,
    ) -> Result<(T, Self), E> {
        if is_strict {
            let started = start.await?;
            return Ok((started, Self::begin(&volumes).await));
        }
        let names = Self::begin(&volumes).await;
        Ok((start.await?, names))
    }

    pub fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Returns the names that were created or replaced since the last check.
    pub async fn changes(&self) -> Result<Vec<NameChange>, Unchecked> {
        self.check(VolumeWatch::take_changes).await.unwrap_or(Ok(Vec::new()))
    }

    /// Whether a sandbox from the time of the last check protects all names that exist now.
    pub async fn is_current(&self) -> bool {
        self.check(|watch| watch.is_unchanged()).await.unwrap_or(Ok(true)) == Ok(true)
    }

    /// Runs a check on a blocking thread. Returns `None` if nothing is watched.
    async fn check<T: Send + 'static>(
        &self,
        check: impl FnOnce(&mut VolumeWatch) -> T + Send + 'static,
    ) -> Option<Result<T, Unchecked>> {
        let watch = match self {
            Self::None => return None,
            Self::Watched(watch) => Arc::clone(watch),
            Self::Unknown => return Some(Err(Unchecked)),
        };
        let checked = tokio::task::spawn_blocking(move || match watch.try_lock() {
            Ok(mut watch) => Ok(check(&mut watch)),
            Err(TryLockError::Poisoned(poisoned)) => Ok(check(&mut poisoned.into_inner())),
            // A check that hangs has the lock. Other checks must not wait for it.
            Err(TryLockError::WouldBlock) => Err(Unchecked),
        });
        Some(tokio::time::timeout(TIMEOUT, checked).await.ok().and_then(Result::ok).unwrap_or(Err(Unchecked)))
    }
}

/// Returns the volumes that a guest may write, and whether they are strict.
pub fn writable(spec: &Spec) -> (Vec<Volume>, bool) {
    let writable = spec.volumes.iter().filter(|volume| volume.access == Access::ReadWrite);
    (writable.cloned().collect(), spec.strict_volumes.is_some())
}

/// Returns the audit event for a change of a protected name.
pub fn event(change: &NameChange) -> AuditEvent {
    AuditEvent::new(AuditKind::ProtectedName, change.change.name())
        .with("host", change.host.to_string_lossy())
        .with("guest", change.guest.to_string_lossy())
}
