//! Requests under way, so that `notifications/cancelled` finds them.
//!
//! Request ids are unique only within a client. The `Mcp-Session-Id` handed out at `initialize` tells
//! clients of one principal apart; nothing else depends on it, and none is remembered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfence_core::Principal;
use tokio_util::sync::CancellationToken;

use crate::rpc::Id;

/// Whose request it is, and which.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) principal: Principal,
    pub(crate) client: String,
    pub(crate) request: Id,
}

#[derive(Clone, Default)]
pub(crate) struct InFlight(Arc<Mutex<Listed>>);

#[derive(Default)]
struct Listed {
    last: u64,
    requests: HashMap<Key, (u64, CancellationToken)>,
}

impl InFlight {
    /// Lists a request until the ticket is dropped. A second one of the same key takes its place.
    pub(crate) fn enter(&self, key: Option<Key>) -> Ticket {
        self.enter_with(key, CancellationToken::new())
    }

    /// The same, with what cancels it.
    pub(crate) fn enter_with(&self, key: Option<Key>, token: CancellationToken) -> Ticket {
        let listed = key.map(|key| {
            let mut listed = self.lock();
            listed.last += 1;
            let number = listed.last;
            listed.requests.insert(key.clone(), (number, token.clone()));
            (self.clone(), key, number)
        });
        Ticket { listed, token }
    }

    pub(crate) fn cancel(&self, key: &Key) {
        if let Some((_, token)) = self.lock().requests.remove(key) {
            token.cancel();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Listed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request under way.
pub(crate) struct Ticket {
    listed: Option<(InFlight, Key, u64)>,
    pub(crate) token: CancellationToken,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Some((in_flight, key, number)) = &self.listed else { return };
        let requests = &mut in_flight.lock().requests;
        // Another may have taken its place.
        if requests.get(key).is_some_and(|(listed, _)| listed == number) {
            requests.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(principal: &str, client: &str) -> Key {
        Key { principal: Principal::named(principal), client: client.into(), request: Id::Number(1) }
    }

    #[test]
    fn a_request_is_cancelled_by_its_own_client_only() {
        let requests = InFlight::default();
        let ticket = requests.enter(Some(key("a", "1")));
        requests.cancel(&key("a", "2"));
        requests.cancel(&key("b", "1"));
        assert!(!ticket.token.is_cancelled());
        requests.cancel(&key("a", "1"));
        assert!(ticket.token.is_cancelled());
    }

    #[test]
    fn nothing_is_kept_of_a_request_that_is_done() {
        let requests = InFlight::default();
        let first = requests.enter(Some(key("a", "1")));
        let second = requests.enter(Some(key("a", "1")));
        drop(first);
        requests.cancel(&key("a", "1"));
        assert!(second.token.is_cancelled(), "the one that took its place is still listed");
        drop(requests.enter(Some(key("a", "1"))));
        assert!(requests.lock().requests.is_empty());
    }
}
