//! The clients that have opened a conversation, by the `Mcp-Session-Id` that they were given.
//!
//! Nothing that must last hangs on it: a client whose id is not known any more, after a restart say, goes on under it
//! as one of which nothing is known.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ringfence_core::Principal;

use crate::client::{Client, Outlet};

/// The least recently used beyond these are forgotten.
const MOST: usize = 1024;

/// Longer than any id that was handed out.
const LONGEST_ID: usize = 128;

#[derive(Clone, Default)]
pub(crate) struct Clients(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    living: HashMap<Key, Entry>,
    /// Those that their clients have ended, the last ones.
    ended: VecDeque<Key>,
}

/// An id is good for its owner alone.
type Key = (Principal, String);

struct Entry {
    client: Arc<Client>,
    used: Instant,
}

impl Clients {
    pub(crate) fn find(&self, principal: &Principal, id: &str) -> Option<Arc<Client>> {
        if id.len() > LONGEST_ID {
            return None;
        }
        let clients = &mut self.table().living;
        let entry = clients
            .entry((principal.clone(), id.to_owned()))
            .or_insert_with(|| Entry { client: Arc::default(), used: Instant::now() });
        entry.used = Instant::now();
        let client = Arc::clone(&entry.client);
        if clients.len() > MOST {
            forget_one(clients);
        }
        Some(client)
    }

    /// Ends a conversation; whether there was one.
    pub(crate) fn remove(&self, principal: &Principal, id: &str) -> bool {
        let key = (principal.clone(), id.to_owned());
        let mut table = self.table();
        let Some(entry) = table.living.remove(&key) else { return false };
        entry.client.listen(Outlet::closed());
        table.ended.push_back(key);
        if table.ended.len() > MOST {
            table.ended.pop_front();
        }
        true
    }

    /// Whether its client has ended it.
    pub(crate) fn has_ended(&self, principal: &Principal, id: &str) -> bool {
        self.table().ended.iter().any(|(owner, ended)| ended == id && owner == principal)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them, with whose they are.
    pub(crate) fn all(&self) -> Vec<(Principal, Arc<Client>)> {
        let table = self.table();
        table.living.iter().map(|((principal, _), entry)| (principal.clone(), Arc::clone(&entry.client))).collect()
    }
}

/// One that listens is kept before one that does not.
fn forget_one(clients: &mut HashMap<Key, Entry>) {
    let oldest = clients.iter().min_by_key(|(_, entry)| (entry.client.stream().is_open(), entry.used));
    if let Some(key) = oldest.map(|(key, _)| key.clone()) {
        clients.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_its_owners_alone() {
        let clients = Clients::default();
        let (a, b) = (Principal::named("a"), Principal::named("b"));
        let first = clients.find(&a, "1").unwrap();
        assert!(Arc::ptr_eq(&first, &clients.find(&a, "1").unwrap()));
        assert!(!Arc::ptr_eq(&first, &clients.find(&b, "1").unwrap()));
        assert!(clients.remove(&a, "1"));
        assert!(!clients.remove(&a, "1"));
        assert!(clients.has_ended(&a, "1") && !clients.has_ended(&b, "1"));
        assert!(clients.find(&a, &"x".repeat(LONGEST_ID + 1)).is_none());
    }

    #[test]
    fn they_do_not_grow_without_bound() {
        let clients = Clients::default();
        for number in 0..MOST + 10 {
            clients.find(&Principal::local(), &number.to_string());
        }
        assert_eq!(clients.all().len(), MOST);
    }
}
