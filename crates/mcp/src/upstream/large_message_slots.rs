//! Room for large messages: few of them at a time, over all connections together.
//!
//! A message over 1 MiB that may be the answer to a call for raw text needs a slot, which it keeps until that text is
//! dropped. Where no such call waits nothing is large: messages are bounded as ever, and need none.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::error::UpstreamError;
use super::rpc::MAX_MESSAGE_BYTES;

/// The largest message that is passed on unparsed.
pub const MAX_RAW_BYTES: usize = 64 * 1024 * 1024;
/// Up to here a message needs no slot.
pub(super) const SMALL_BYTES: usize = 1024 * 1024;
/// How often it is looked whether a large message is still waited for.
pub(super) const GLANCE: Duration = Duration::from_secs(1);

const SLOTS: usize = 4;
/// What readers allow beyond the limit for what is not the message itself.
const SLACK_BYTES: usize = 4096;
/// How long a message waits for a slot, and all that comes after it on its connection. Less than a server that is
/// probed has for its answer.
const PATIENCE: Duration = Duration::from_secs(4);
/// No call takes longer than a large message may.
const LONGEST: Duration = Duration::from_secs(120);

static SHARED: LazyLock<Slots> = LazyLock::new(|| Slots::new(SLOTS));

/// The slots that there are.
#[derive(Debug, Clone)]
pub(super) struct Slots(Arc<Semaphore>);

/// One of them, free again when the last clone is dropped.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    _permit: Arc<OwnedSemaphorePermit>,
}

impl Slots {
    pub(super) fn new(count: usize) -> Self {
        Self(Arc::new(Semaphore::new(count)))
    }

    /// Those of all connections.
    pub(super) fn shared() -> Self {
        SHARED.clone()
    }

    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.0.available_permits()
    }

    pub(super) fn try_take(&self) -> Option<Slot> {
        Arc::clone(&self.0).try_acquire_owned().ok().map(Slot::new)
    }

    /// Waits for a slot, for a while and as long as it is wanted.
    pub(super) async fn take(&self, is_wanted: impl Fn() -> bool) -> Option<Slot> {
        let mut acquire = std::pin::pin!(Arc::clone(&self.0).acquire_owned());
        let until = Instant::now() + PATIENCE;
        while is_wanted() && Instant::now() < until {
            if let Ok(permit) = tokio::time::timeout(GLANCE, &mut acquire).await {
                return permit.ok().map(Slot::new);
            }
        }
        None
    }
}

impl Slot {
    fn new(permit: OwnedSemaphorePermit) -> Self {
        Self { _permit: Arc::new(permit) }
    }
}

/// How far a message that is being received may grow.
#[derive(Debug, Default)]
pub(super) enum Room {
    /// As far as any.
    #[default]
    Ordinary,
    Large {
        slot: Slot,
        until: Instant,
    },
    /// As far as any, and it is no raw answer: there was no slot, or it is not waited for any more.
    Denied,
}

impl Room {
    pub(super) fn large(slot: Slot) -> Self {
        Self::Large { slot, until: Instant::now() + LONGEST }
    }

    pub(super) fn is_large(&self) -> bool {
        matches!(self, Self::Large { .. })
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Large { until, .. } if *until <= Instant::now())
    }

    pub(super) fn limit(&self) -> usize {
        if self.is_large() { MAX_RAW_BYTES } else { MAX_MESSAGE_BYTES }
    }

    /// Why a message that has outgrown it fails.
    pub(super) fn excess(&self) -> UpstreamError {
        if matches!(self, Self::Denied) { UpstreamError::Busy } else { UpstreamError::TooLarge }
    }

    /// The message is whole: its slot goes with it, and the next one starts as any.
    pub(super) fn leave(&mut self) -> Option<Slot> {
        match std::mem::take(self) {
            Self::Large { slot, .. } => Some(slot),
            Self::Ordinary | Self::Denied => None,
        }
    }

    /// Makes a buffer ready for what may come. The whole is reserved at once, since memory that is never written to
    /// costs nothing, and a buffer that grows in steps would be copied, or twice as large as its content.
    pub(super) fn prepare(&self, buffer: &mut Vec<u8>) {
        if self.is_large() && buffer.capacity() < MAX_RAW_BYTES {
            buffer.reserve_exact(MAX_RAW_BYTES + SLACK_BYTES - buffer.len());
        }
    }
}
