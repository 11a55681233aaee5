//! The clients that have sent `initialize`, by the `Mcp-Session-Id` that they were given.
//!
//! No lasting state depends on it: a client whose id is not known any more, for example after a restart, continues under
//! it as a client without declared capabilities.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use ringfence_core::Principal;
use ringfence_core::sync::Mutex;

use crate::client::{Client, MessageSink};

/// Maximum number of clients; the least recently used ones are forgotten first.
const MAX_CLIENTS: usize = 1024;

/// Maximum size of an id, longer than any id of this server.
const MAX_ID_BYTES: usize = 128;

#[derive(Clone, Default)]
pub struct Clients(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    live: HashMap<Key, Entry>,
    /// The last ids that their clients have deleted.
    ended: VecDeque<Key>,
}

/// An id is valid only for the principal that owns it.
type Key = (Principal, String);

struct Entry {
    client: Arc<Client>,
    last_used: Instant,
}

impl Clients {
    /// Returns the client with this id, which is added if it is not known.
    pub fn find(&self, principal: &Principal, id: &str) -> Option<Arc<Client>> {
        let id = Self::known_length(id)?;
        let live = &mut self.0.lock().live;
        let entry = live
            .entry((principal.clone(), id.to_owned()))
            .or_insert_with(|| Entry { client: Arc::default(), last_used: Instant::now() });
        entry.last_used = Instant::now();
        let client = Arc::clone(&entry.client);
        if live.len() > MAX_CLIENTS {
            forget_one(live);
        }
        Some(client)
    }

    /// Returns the id if it is not longer than the id of any client.
    pub(crate) fn known_length(id: &str) -> Option<&str> {
        (id.len() <= MAX_ID_BYTES).then_some(id)
    }

    /// Ends an MCP session. Returns false if there was none.
    pub fn remove(&self, principal: &Principal, id: &str) -> bool {
        let key = (principal.clone(), id.to_owned());
        let mut table = self.0.lock();
        let Some(entry) = table.live.remove(&key) else { return false };
        entry.client.set_stream(MessageSink::closed());
        table.ended.push_back(key);
        if table.ended.len() > MAX_CLIENTS {
            table.ended.pop_front();
        }
        true
    }

    /// Whether a client has ended this MCP session.
    pub fn has_ended(&self, principal: &Principal, id: &str) -> bool {
        self.0.lock().ended.iter().any(|(owner, ended)| ended == id && owner == principal)
    }

    /// All clients with their owners.
    pub fn all(&self) -> Vec<(Principal, Arc<Client>)> {
        let table = self.0.lock();
        table.live.iter().map(|((principal, _), entry)| (principal.clone(), Arc::clone(&entry.client))).collect()
    }
}

/// Forgets the least recently used client, those without an open stream first.
fn forget_one(clients: &mut HashMap<Key, Entry>) {
    let oldest = clients.iter().min_by_key(|(_, entry)| (entry.client.stream().is_open(), entry.last_used));
    if let Some(key) = oldest.map(|(key, _)| key.clone()) {
        clients.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_is_valid_only_for_its_owner() {
        let clients = Clients::default();
        let (a, b) = (Principal::named("a"), Principal::named("b"));
        let first = clients.find(&a, "1").unwrap();
        assert!(Arc::ptr_eq(&first, &clients.find(&a, "1").unwrap()));
        assert!(!Arc::ptr_eq(&first, &clients.find(&b, "1").unwrap()));
        assert!(clients.remove(&a, "1"));
        assert!(!clients.remove(&a, "1"));
        assert!(clients.has_ended(&a, "1") && !clients.has_ended(&b, "1"));
        assert!(clients.find(&a, &"x".repeat(MAX_ID_BYTES + 1)).is_none());
    }

    #[test]
    fn number_of_clients_is_bounded() {
        let clients = Clients::default();
        for number in 0..MAX_CLIENTS + 10 {
            clients.find(&Principal::local(), &number.to_string());
        }
        assert_eq!(clients.all().len(), MAX_CLIENTS);
    }
}
