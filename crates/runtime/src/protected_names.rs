//! Looks after protected names that guests create in read-write volumes, without blocking the tasks of the server.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use ringfence_sandbox::{Access, NameChange, Spec, Volume, VolumeWatch};

use crate::audit::{AuditEvent, AuditKind};

/// For the file system to answer; one on a network may hang.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The protected names of one sandbox. Cheap to clone; all clones are one.
#[derive(Clone, Default)]
pub(crate) struct ProtectedNames(Option<Arc<Mutex<VolumeWatch>>>);

/// The file system did not answer in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unchecked;

impl Unchecked {
    pub(crate) const NOTICE: &str =
        "the protected names in the volumes could not be checked in time: their file system does not answer";
}

impl ProtectedNames {
    /// Looks at the volumes for the first time.
    pub(crate) async fn begin(volumes: &[Volume]) -> Self {
        if volumes.iter().all(|volume| volume.access == Access::ReadOnly) {
            return Self(None);
        }
        let volumes = volumes.to_vec();
        let begun = tokio::task::spawn_blocking(move || VolumeWatch::begin(&volumes));
        let begun = tokio::time::timeout(TIMEOUT, begun).await;
        Self(begun.ok().and_then(Result::ok).flatten().map(|watch| Arc::new(Mutex::new(watch))))
    }

    /// The same around the making of a sandbox: before it, so that nothing is missed; in strict volumes after it, when
    /// the placeholders exist. The volumes are those of [`writable`].
    pub(crate) async fn around<T, E>(
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

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The names that were created or replaced since the last look.
    pub(crate) async fn changes(&self) -> Result<Vec<NameChange>, Unchecked> {
        self.look(VolumeWatch::changes).await.unwrap_or(Ok(Vec::new()))
    }

    /// Whether a sandbox that was made then protects all that there is now.
    pub(crate) async fn is_current(&self) -> bool {
        self.look(|watch| watch.is_current()).await.unwrap_or(Ok(true)) == Ok(true)
    }

    /// Nothing where nothing is watched.
    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut VolumeWatch) -> T + Send + 'static,
    ) -> Option<Result<T, Unchecked>> {
        let watch = Arc::clone(self.0.as_ref()?);
        let looked = tokio::task::spawn_blocking(move || match watch.try_lock() {
            Ok(mut watch) => Ok(look(&mut watch)),
            Err(TryLockError::Poisoned(poisoned)) => Ok(look(&mut poisoned.into_inner())),
            // A look that hangs has it; others must not hang with it.
            Err(TryLockError::WouldBlock) => Err(Unchecked),
        });
        Some(tokio::time::timeout(TIMEOUT, looked).await.ok().and_then(Result::ok).unwrap_or(Err(Unchecked)))
    }
}

/// The volumes of a sandbox that its guest may write, and whether they are strict.
pub(crate) fn writable(spec: &Spec) -> (Vec<Volume>, bool) {
    let writable = spec.volumes.iter().filter(|volume| volume.access == Access::ReadWrite);
    (writable.cloned().collect(), spec.strict_volumes.is_some())
}

pub(crate) fn event(change: &NameChange) -> AuditEvent {
    AuditEvent::new(AuditKind::ProtectedName, change.change.name())
        .with("host", change.host.to_string_lossy())
        .with("guest", change.guest.to_string_lossy())
}

/// The directory for the locks of strict volumes.
pub(crate) fn locks(state_directory: &Path) -> PathBuf {
    state_directory.join("volumes")
}
