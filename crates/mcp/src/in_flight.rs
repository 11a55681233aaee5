//! The requests in progress, so that `notifications/cancelled` finds them.
//!
//! Request ids are unique only within a client. The `Mcp-Session-Id` of `initialize` distinguishes the clients of one
//! principal.

use std::collections::HashMap;
use std::sync::Arc;

use ringfence_core::Principal;
use ringfence_core::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::rpc::Id;

/// Identifies a request in progress.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key {
    pub principal: Principal,
    pub client: String,
    pub request: Id,
}

#[derive(Clone, Default)]
pub struct InFlight(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    last_number: u64,
    requests: HashMap<Key, (u64, CancellationToken)>,
}

impl InFlight {
    /// Registers a request until the ticket is dropped. A second request with the same key replaces the first.
    pub fn enter(&self, key: Option<Key>) -> Ticket {
        self.enter_with(key, CancellationToken::new())
    }

    /// The same with the token that cancels the request.
    pub fn enter_with(&self, key: Option<Key>, token: CancellationToken) -> Ticket {
        let entry = key.map(|key| {
            let mut table = self.0.lock();
            table.last_number += 1;
            let number = table.last_number;
            table.requests.insert(key.clone(), (number, token.clone()));
            (self.clone(), key, number)
        });
        Ticket { entry, token }
    }

    pub fn cancel(&self, key: &Key) {
        if let Some((_, token)) = self.0.lock().requests.remove(key) {
            token.cancel();
        }
    }
}

/// The registration of a request in progress.
pub struct Ticket {
    entry: Option<(InFlight, Key, u64)>,
    pub token: CancellationToken,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Some((in_flight, key, number)) = &self.entry else { return };
        let requests = &mut in_flight.0.lock().requests;
        // A later request with the same key may have replaced this one.
        if requests.get(key).is_some_and(|(registered, _)| registered == number) {
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
    fn request_is_cancelled_only_by_its_client() {
        let requests = InFlight::default();
        let ticket = requests.enter(Some(key("a", "1")));
        requests.cancel(&key("a", "2"));
        requests.cancel(&key("b", "1"));
        assert!(!ticket.token.is_cancelled());
        requests.cancel(&key("a", "1"));
        assert!(ticket.token.is_cancelled());
    }

    #[test]
    fn finished_request_is_forgotten() {
        let requests = InFlight::default();
        let first = requests.enter(Some(key("a", "1")));
        let second = requests.enter(Some(key("a", "1")));
        drop(first);
        requests.cancel(&key("a", "1"));
        assert!(second.token.is_cancelled(), "the request that replaced the first is still registered");
        drop(requests.enter(Some(key("a", "1"))));
        assert!(requests.0.lock().requests.is_empty());
    }
}
