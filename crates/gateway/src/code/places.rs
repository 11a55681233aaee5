//! How many calls of one caller a server gets at once; the others wait their turn.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ringfence_core::Principal;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(super) struct Places {
    most: usize,
    /// By caller and the server's uuid, as long as somebody is or waits in one.
    rooms: Mutex<HashMap<(Principal, String), Weak<Semaphore>>>,
}

impl Places {
    pub(super) fn new(most: usize) -> Self {
        Self { most, rooms: Mutex::default() }
    }

    /// Waits for a place; first come, first served.
    pub(super) async fn take(&self, principal: &Principal, server: &str) -> Option<OwnedSemaphorePermit> {
        let room = {
            let mut rooms = self.rooms.lock().unwrap_or_else(PoisonError::into_inner);
            let key = (principal.clone(), server.to_owned());
            rooms.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
                rooms.retain(|_, room| room.strong_count() > 0);
                let room = Arc::new(Semaphore::new(self.most));
                rooms.insert(key, Arc::downgrade(&room));
                room
            })
        };
        room.acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_caller_has_places_of_its_own_at_each_server() {
        let places = Places::new(2);
        let (one, other) = (Principal::named("one"), Principal::named("other"));
        let held = [places.take(&one, "a").await, places.take(&one, "a").await];
        let patience = std::time::Duration::from_secs(1);
        assert!(tokio::time::timeout(patience, places.take(&one, "a")).await.is_err());
        let _elsewhere = (places.take(&one, "b").await, places.take(&other, "a").await);
        drop(held);
        assert!(tokio::time::timeout(patience, places.take(&one, "a")).await.is_ok());
        assert_eq!(places.rooms.lock().unwrap().len(), 3);
        let _last = places.take(&one, "c").await;
        assert_eq!(places.rooms.lock().unwrap().len(), 3, "rooms that nobody is in are forgotten");
    }
}
