//! Limits the number of large messages in memory, over all connections together.
//!
//! A message over 1 MiB that may be a raw result needs a slot, which it occupies until the result is dropped. While no
//! call expects a raw result, messages have the ordinary size limit and need no slot.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::connection::MAX_MESSAGE_BYTES;
use super::error::UpstreamError;

/// Maximum size of a message with a raw result.
pub const MAX_RAW_BYTES: usize = 64 * 1024 * 1024;
/// Maximum size of a message that needs no slot.
pub(super) const MAX_SMALL_BYTES: usize = 1024 * 1024;
/// Interval between checks whether a call still waits for a large message.
pub(super) const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

const SLOT_COUNT: usize = 4;
/// Reserved beyond the maximum size for framing that readers store with the message.
const FRAMING_BYTES: usize = 4096;
/// Maximum time that a message waits for a slot. Later messages of the connection wait too, so this is shorter than the
/// timeout of a health probe.
const SLOT_TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum time to receive a large message. No call takes longer.
const MAX_RECEIVE_TIME: Duration = Duration::from_secs(120);

static SHARED: LazyLock<Slots> = LazyLock::new(|| Slots::new(SLOT_COUNT));

/// A set of slots.
#[derive(Debug, Clone)]
pub(super) struct Slots(Arc<Semaphore>);

/// One slot, released when the last clone is dropped.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    _permit: Arc<OwnedSemaphorePermit>,
}

impl Slots {
    pub(super) fn new(count: usize) -> Self {
        Self(Arc::new(Semaphore::new(count)))
    }

    /// The slots of all connections.
    pub(super) fn shared() -> Self {
        SHARED.clone()
    }

    #[cfg(test)]
    pub(super) fn available(&self) -> usize {
        self.0.available_permits()
    }

    pub(super) fn try_acquire(&self) -> Option<Slot> {
        Arc::clone(&self.0).try_acquire_owned().ok().map(Slot::new)
    }

    /// Waits for a slot, at most [`SLOT_TIMEOUT`] and while `is_needed` returns true.
    pub(super) async fn acquire(&self, is_needed: impl Fn() -> bool) -> Option<Slot> {
        let mut acquire = std::pin::pin!(Arc::clone(&self.0).acquire_owned());
        let deadline = Instant::now() + SLOT_TIMEOUT;
        while is_needed() && Instant::now() < deadline {
            if let Ok(permit) = tokio::time::timeout(RECHECK_INTERVAL, &mut acquire).await {
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

/// The size limit of a message that is being received.
#[derive(Debug, Default)]
pub(super) enum SizeLimit {
    /// The limit of ordinary messages.
    #[default]
    Ordinary,
    Large {
        slot: Slot,
        deadline: Instant,
    },
    /// The limit of ordinary messages, and the message cannot be a raw result: no slot was free, or no call waits for it.
    Denied,
}

impl SizeLimit {
    pub(super) fn large(slot: Slot) -> Self {
        Self::Large { slot, deadline: Instant::now() + MAX_RECEIVE_TIME }
    }

    pub(super) fn is_large(&self) -> bool {
        matches!(self, Self::Large { .. })
    }

    pub(super) fn is_expired(&self) -> bool {
        matches!(self, Self::Large { deadline, .. } if *deadline <= Instant::now())
    }

    pub(super) fn max_bytes(&self) -> usize {
        if self.is_large() { MAX_RAW_BYTES } else { MAX_MESSAGE_BYTES }
    }

    /// The error of a message over the limit.
    pub(super) fn error(&self) -> UpstreamError {
        if matches!(self, Self::Denied) { UpstreamError::Busy } else { UpstreamError::TooLarge }
    }

    /// Returns the slot of a complete message and resets the limit for the next one.
    pub(super) fn take_slot(&mut self) -> Option<Slot> {
        match std::mem::take(self) {
            Self::Large { slot, .. } => Some(slot),
            Self::Ordinary | Self::Denied => None,
        }
    }

    /// Reserves the maximum size of a large message at once. Memory that is never written costs nothing, and a buffer that
    /// grows in steps would be copied, or twice as large as its content.
    pub(super) fn reserve(&self, buffer: &mut Vec<u8>) {
        if self.is_large() && buffer.capacity() < MAX_RAW_BYTES {
            buffer.reserve_exact(MAX_RAW_BYTES + FRAMING_BYTES - buffer.len());
        }
    }
}
