//! The clients that have opened a conversation, by the `Mcp-Session-Id` that they were given.
//!
//! Nothing that must last hangs on it: a client whose id is not known any more, after a restart say, goes on under it
//! as one of which nothing is known.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ringfence_runtime::session::Principal;

use crate::client::Client;

/// The least recently used beyond these are forgotten.
const MOST: usize = 1024;

/// Longer than any id that was handed out.
const LONGEST_ID: usize = 128;

#[derive(Clone, Default)]
pub(crate) struct Clients(Arc<Mutex<HashMap<Key, Entry>>>);

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
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = clients
            .entry((principal.clone(), id.to_owned()))
            .or_insert_with(|| Entry { client: Arc::default(), used: Instant::now() });
        entry.used = Instant::now();
        let client = Arc::clone(&entry.client);
        if clients.len() > MOST {
            forget_one(&mut clients);
        }
        Some(client)
    }

    /// Ends a conversation; whether there was one.
    pub(crate) fn remove(&self, principal: &Principal, id: &str) -> bool {
        let removed = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&(principal.clone(), id.to_owned()));
        removed.inspect(|entry| entry.client.listen(crate::client::Outlet::closed())).is_some()
    }

    /// All of them, with whose they are.
    pub(crate) fn all(&self) -> Vec<(Principal, Arc<Client>)> {
        let clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        clients.iter().map(|((principal, _), entry)| (principal.clone(), Arc::clone(&entry.client))).collect()
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
