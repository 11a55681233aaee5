//! How many servers start at once.
//!
//! A few quick places keep a burst of starts from taking all of the machine. A start that is slow moves on to one of
//! the slow places: servers that hang must not keep the others from starting for as long as their time limits allow.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[derive(Clone)]
pub(super) struct StartLimiter {
    quick: Arc<Semaphore>,
    slow: Arc<Semaphore>,
    slow_after: Duration,
}

/// Given back when dropped.
pub(super) struct StartPermit {
    _permit: OwnedSemaphorePermit,
}

impl StartLimiter {
    pub(super) fn new(quick: usize, slow: usize, slow_after: Duration) -> Self {
        Self { quick: Arc::new(Semaphore::new(quick.max(1))), slow: Arc::new(Semaphore::new(slow)), slow_after }
    }

    /// Waits for a quick place, in turn.
    pub(super) fn acquire(&self) -> impl Future<Output = StartPermit> + Send + use<> {
        acquire_permit(self.quick.clone())
    }

    /// Runs a start that got a place.
    pub(super) async fn run<F: Future>(&self, place: StartPermit, start: F) -> F::Output {
        tokio::pin!(start);
        let slow = async {
            tokio::time::sleep(self.slow_after).await;
            acquire_permit(self.slow.clone()).await
        };
        let _slow = tokio::select! {
            output = &mut start => return output,
            slow = slow => slow,
        };
        drop(place);
        start.await
    }
}

async fn acquire_permit(places: Arc<Semaphore>) -> StartPermit {
    match places.acquire_owned().await {
        Ok(permit) => StartPermit { _permit: permit },
        // They are never closed.
        Err(_) => std::future::pending().await,
    }
}
