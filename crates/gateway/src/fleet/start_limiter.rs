//! Limits the number of concurrent starts.
//!
//! A small number of quick permits prevents a burst of starts from using the whole machine. A start that takes long
//! exchanges its quick permit for a slow one: servers that hang until their timeout must not delay the others.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[derive(Clone)]
pub(super) struct StartLimiter {
    quick: Arc<Semaphore>,
    slow: Arc<Semaphore>,
    slow_after: Duration,
}

/// Released when dropped.
pub(super) struct StartPermit {
    _permit: OwnedSemaphorePermit,
}

impl StartLimiter {
    pub(super) fn new(quick: usize, slow: usize, slow_after: Duration) -> Self {
        Self { quick: Arc::new(Semaphore::new(quick.max(1))), slow: Arc::new(Semaphore::new(slow)), slow_after }
    }

    /// Waits for a quick permit, in the order of the calls.
    pub(super) fn acquire(&self) -> impl Future<Output = StartPermit> + Send + use<> {
        acquire_permit(self.quick.clone())
    }

    /// Runs a start that has a quick permit.
    pub(super) async fn run<F: Future>(&self, permit: StartPermit, start: F) -> F::Output {
        tokio::pin!(start);
        let slow = async {
            tokio::time::sleep(self.slow_after).await;
            acquire_permit(self.slow.clone()).await
        };
        let _slow = tokio::select! {
            output = &mut start => return output,
            slow = slow => slow,
        };
        drop(permit);
        start.await
    }
}

async fn acquire_permit(semaphore: Arc<Semaphore>) -> StartPermit {
    match semaphore.acquire_owned().await {
        Ok(permit) => StartPermit { _permit: permit },
        // The semaphores are never closed.
        Err(_) => std::future::pending().await,
    }
}
