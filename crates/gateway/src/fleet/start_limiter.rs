//! How many servers start at once.
//!
//! A few quick places keep a burst of starts from taking all of the machine. A start that is slow moves on to one of
//! the slow places: servers that hang must not keep the others from starting for as long as their time limits allow.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[derive(Clone)]
pub(super) struct Places {
    quick: Arc<Semaphore>,
    slow: Arc<Semaphore>,
    slow_after: Duration,
}

/// Given back when dropped.
pub(super) struct Place {
    _permit: OwnedSemaphorePermit,
}

impl Places {
    pub(super) fn new(quick: usize, slow: usize, slow_after: Duration) -> Self {
        Self { quick: Arc::new(Semaphore::new(quick.max(1))), slow: Arc::new(Semaphore::new(slow)), slow_after }
    }

    /// Waits for a quick place, in turn.
    pub(super) fn take(&self) -> impl Future<Output = Place> + Send + use<> {
        acquire(self.quick.clone())
    }

    /// Runs a start that got a place.
    pub(super) async fn hold<F: Future>(&self, place: Place, start: F) -> F::Output {
        tokio::pin!(start);
        let slow = async {
            tokio::time::sleep(self.slow_after).await;
            acquire(self.slow.clone()).await
        };
        let _slow = tokio::select! {
            output = &mut start => return output,
            slow = slow => slow,
        };
        drop(place);
        start.await
    }
}

async fn acquire(places: Arc<Semaphore>) -> Place {
    match places.acquire_owned().await {
        Ok(permit) => Place { _permit: permit },
        // They are never closed.
        Err(_) => std::future::pending().await,
    }
}
