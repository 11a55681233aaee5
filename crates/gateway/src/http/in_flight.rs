//! Requests under way, so that `notifications/cancelled` finds them.
//!
//! Request ids are unique only within a client. The `Mcp-Session-Id` handed out at `initialize` tells
//! clients of one principal apart; nothing else depends on it, and none is remembered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfence_runtime::session::Principal;
use rmcp::model::RequestId;
use tokio_util::sync::CancellationToken;

/// Whose request it is, and which.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) principal: Principal,
    pub(super) client: String,
    pub(super) request: RequestId,
}

#[derive(Clone, Default)]
pub(super) struct InFlight(Arc<Mutex<HashMap<Key, CancellationToken>>>);

impl InFlight {
    /// Lists a request until the ticket is dropped. A second one of the same key takes its place.
    pub(super) fn enter(&self, key: Option<Key>) -> Ticket {
        let token = CancellationToken::new();
        if let Some(key) = &key {
            self.lock().insert(key.clone(), token.clone());
        }
        Ticket { listed: key.map(|key| (self.clone(), key)), token }
    }

    pub(super) fn cancel(&self, key: &Key) {
        if let Some(token) = self.lock().remove(key) {
            token.cancel();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request under way.
pub(super) struct Ticket {
    listed: Option<(InFlight, Key)>,
    pub(super) token: CancellationToken,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some((in_flight, key)) = &self.listed {
            in_flight.lock().remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(principal: &str, client: &str) -> Key {
        Key { principal: Principal::named(principal), client: client.into(), request: RequestId::Number(1) }
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
        drop(requests.enter(Some(key("a", "1"))));
        assert!(requests.lock().is_empty());
    }
}
