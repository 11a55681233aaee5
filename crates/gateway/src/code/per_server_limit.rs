//! Limits the concurrent calls of one caller to one server; further calls wait.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use ringfence_core::Principal;
use ringfence_core::sync::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(super) struct PerServerLimit {
    limit: usize,
    /// By caller and server UUID. An entry is dead when no call runs or waits.
    semaphores: Mutex<HashMap<(Principal, String), Weak<Semaphore>>>,
}

impl PerServerLimit {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, semaphores: Mutex::default() }
    }

    /// Waits for a permit, in the order of the calls.
    pub(super) async fn acquire(&self, principal: &Principal, server: &str) -> Option<OwnedSemaphorePermit> {
        let semaphore = {
            let mut semaphores = self.semaphores.lock();
            let key = (principal.clone(), server.to_owned());
            semaphores.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
                semaphores.retain(|_, semaphore| semaphore.strong_count() > 0);
                let semaphore = Arc::new(Semaphore::new(self.limit));
                semaphores.insert(key, Arc::downgrade(&semaphore));
                semaphore
            })
        };
        semaphore.acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn limit_applies_to_each_caller_and_server() {
        let limit = PerServerLimit::new(2);
        let (alice, bob) = (Principal::named("alice"), Principal::named("bob"));
        let permits = [limit.acquire(&alice, "a").await, limit.acquire(&alice, "a").await];
        let timeout = std::time::Duration::from_secs(1);
        assert!(tokio::time::timeout(timeout, limit.acquire(&alice, "a")).await.is_err());
        let _others = (limit.acquire(&alice, "b").await, limit.acquire(&bob, "a").await);
        drop(permits);
        assert!(tokio::time::timeout(timeout, limit.acquire(&alice, "a")).await.is_ok());
        assert_eq!(limit.semaphores.lock().len(), 3);
        let _last = limit.acquire(&alice, "c").await;
        assert_eq!(limit.semaphores.lock().len(), 3, "unused entries are removed");
    }
}
