//! Detects protected names that guests create in read-write volumes, without blocking the server's async tasks.

use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use ringfence_core::{Access, Spec, Volume};
use ringfence_sandbox::{NameChange, VolumeWatch};

use ringfence_core::{AuditEvent, AuditKind};

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

/// The file system did not answer in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unchecked;

impl Unchecked {
    pub const NOTICE: &str =
        "the protected names in the volumes could not be checked in time: their file system does not answer";
}

impl ProtectedNames {
    /// Takes the first snapshot of the volumes.
    pub async fn begin(volumes: &[Volume]) -> Self {
        if volumes.iter().all(|volume| volume.access == Access::ReadOnly) {
            return Self::None;
        }
        let volumes = volumes.to_vec();
        let begun = tokio::task::spawn_blocking(move || VolumeWatch::start(&volumes));
        let begun = tokio::time::timeout(TIMEOUT, begun).await;
        match begun {
            Ok(Ok(Some(watch))) => Self::Watched(Arc::new(Mutex::new(watch))),
            Ok(Ok(None)) => Self::None,
            Ok(Err(_)) | Err(_) => Self::Unknown,
        }
    }

    /// Takes the first snapshot and starts a sandbox: normally in this order, so that nothing is missed; with strict
    /// volumes in reverse order, because the placeholders must exist first. The volumes are those of [`writable`].
    pub async fn around<T, E>(
        (volumes, is_strict): (Vec<Volume>, bool),
        make: impl Future<Output = Result<T, E>>,
    ) -> Result<(T, Self), E> {
        if is_strict {
            let made = make.await?;
            return Ok((made, Self::begin(&volumes).await));
        }
        let names = Self::begin(&volumes).await;
        Ok((make.await?, names))
    }

    pub fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    /// The names that were created or replaced since the last check.
    pub async fn changes(&self) -> Result<Vec<NameChange>, Unchecked> {
        self.look(VolumeWatch::take_changes).await.unwrap_or(Ok(Vec::new()))
    }

    /// Whether a sandbox from the time of the last check protects all names that exist now.
    pub async fn is_current(&self) -> bool {
        self.look(|watch| watch.is_unchanged()).await.unwrap_or(Ok(true)) == Ok(true)
    }

    /// Runs a check on a blocking thread. Returns `None` if nothing is watched.
    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut VolumeWatch) -> T + Send + 'static,
    ) -> Option<Result<T, Unchecked>> {
        let watch = match self {
            Self::None => return None,
            Self::Watched(watch) => Arc::clone(watch),
            Self::Unknown => return Some(Err(Unchecked)),
        };
        let looked = tokio::task::spawn_blocking(move || match watch.try_lock() {
            Ok(mut watch) => Ok(look(&mut watch)),
            Err(TryLockError::Poisoned(poisoned)) => Ok(look(&mut poisoned.into_inner())),
            // A check that hangs has the lock; others must not wait for it.
            Err(TryLockError::WouldBlock) => Err(Unchecked),
        });
        Some(tokio::time::timeout(TIMEOUT, looked).await.ok().and_then(Result::ok).unwrap_or(Err(Unchecked)))
    }
}

/// The volumes of a sandbox that its guest may write, and whether they are strict.
pub fn writable(spec: &Spec) -> (Vec<Volume>, bool) {
    let writable = spec.volumes.iter().filter(|volume| volume.access == Access::ReadWrite);
    (writable.cloned().collect(), spec.strict_volumes.is_some())
}

pub fn event(change: &NameChange) -> AuditEvent {
    AuditEvent::new(AuditKind::ProtectedName, change.change.name())
        .with("host", change.host.to_string_lossy())
        .with("guest", change.guest.to_string_lossy())
}
