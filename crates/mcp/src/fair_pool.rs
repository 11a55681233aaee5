//! Resource pools that no single principal can exhaust.
//!
//! If a server has several principals, each may use at most its share of a pool (`fair_share`: three quarters), so that
//! the others always get a part. A single principal may use the whole pool.

use ringfence_core::sync::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

use ringfence_core::Principal;
use ringfence_core::fair_share;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The number of principals of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Principals {
    One,
    Several,
}

pub struct Pool {
    all: Arc<Semaphore>,
    total: u32,
    /// The maximum for one principal, if there are several.
    share: Option<u32>,
    /// The share of each principal; at most one entry per token.
    shares: Mutex<HashMap<Principal, Arc<Semaphore>>>,
}

/// A part of a pool, returned on drop.
pub struct Permit {
    _all: OwnedSemaphorePermit,
    _share: Option<OwnedSemaphorePermit>,
}

/// The reason why a pool refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// The principals together use the whole pool.
    Pool,
    /// The principal has used its share, which has this size.
    Share(u32),
}

impl Pool {
    pub fn new(total: usize, principals: Principals) -> Self {
        let total = total.min(Semaphore::MAX_PERMITS).min(u32::MAX as usize);
        let size = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let share = (principals == Principals::Several).then(|| size(fair_share(total)));
        Self { all: Arc::new(Semaphore::new(total)), total: size(total), share, shares: Mutex::default() }
    }

    pub fn try_acquire(&self, principal: &Principal) -> Result<Permit, Full> {
        self.try_acquire_many(principal, 1)
    }

    pub fn try_acquire_many(&self, principal: &Principal, count: u32) -> Result<Permit, Full> {
        let share = match self.share_of(principal) {
            Some((semaphore, size)) => Some(semaphore.try_acquire_many_owned(count).map_err(|_| Full::Share(size))?),
            None => None,
        };
        let all = Arc::clone(&self.all).try_acquire_many_owned(count).map_err(|_| Full::Pool)?;
        Ok(Permit { _all: all, _share: share })
    }

    /// Waits for one unit. A principal over its share waits in a separate queue, so it does not delay the others.
    pub async fn acquire(&self, principal: &Principal) -> Option<Permit> {
        let share = match self.share_of(principal) {
            Some((semaphore, _)) => Some(semaphore.acquire_owned().await.ok()?),
            None => None,
        };
        let all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(Permit { _all: all, _share: share })
    }

    /// The amount that a principal can still take.
    pub fn available(&self, principal: &Principal) -> usize {
        let all = self.all.available_permits();
        self.share_of(principal).map_or(all, |(share, _)| share.available_permits().min(all))
    }

    /// Waits until everything has been returned.
    pub async fn wait_until_unused(&self) {
        let _ = self.all.acquire_many(self.total).await;
    }

    fn share_of(&self, principal: &Principal) -> Option<(Arc<Semaphore>, u32)> {
        let share = self.share?;
        let mut shares = self.shares.lock();
        let semaphore = match shares.get(principal) {
            Some(semaphore) => Arc::clone(semaphore),
            None => {
                Arc::clone(shares.entry(principal.clone()).or_insert_with(|| Arc::new(Semaphore::new(share as usize))))
            }
        };
        Some((semaphore, share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold_all(pool: &Pool, principal: &Principal) -> (Vec<Permit>, Full) {
        let mut held = Vec::new();
        loop {
            match pool.try_acquire(principal) {
                Ok(permit) => held.push(permit),
                Err(full) => return (held, full),
            }
        }
    }

    #[test]
    fn one_of_several_principals_leaves_part_of_pool_to_others() {
        let pool = Pool::new(8, Principals::Several);
        let [one, other] = ["one", "other"].map(Principal::named);
        let (held, full) = hold_all(&pool, &one);
        assert_eq!((held.len(), full), (6, Full::Share(6)));
        assert_eq!((pool.available(&one), pool.available(&other)), (0, 2));
        let (others, full) = hold_all(&pool, &other);
        assert_eq!((others.len(), full), (2, Full::Pool));
        drop(held);
        assert_eq!(pool.available(&one), 6);
    }

    #[test]
    fn only_principal_gets_everything() {
        let pool = Pool::new(8, Principals::One);
        let (held, full) = hold_all(&pool, &Principal::local());
        assert_eq!((held.len(), full), (8, Full::Pool));
    }

    #[tokio::test]
    async fn principal_that_waits_for_its_share_does_not_delay_others() {
        let pool = Arc::new(Pool::new(4, Principals::Several));
        let [one, other] = ["one", "other"].map(Principal::named);
        let (_held, _) = hold_all(&pool, &one);
        let waiting = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { pool.acquire(&one).await }
        });
        tokio::task::yield_now().await;
        assert!(pool.acquire(&other).await.is_some());
        assert!(!waiting.is_finished());
        waiting.abort();
    }
}
