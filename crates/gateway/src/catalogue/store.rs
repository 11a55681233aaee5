//! The last known tools of each server, in memory and in the database, so that they are known while it does not run.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ringfence_core::sync::Mutex;
use ringfence_entries::code_aliases;
use ringfence_store::{Store, StoreError};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{name_of, valid_items};

/// The tools of one server in its own order.
#[derive(Debug, Default)]
pub(crate) struct ToolList {
    pub(super) tools: Arc<Vec<Value>>,
    /// The names of the tools in code. They do not depend on which of them a caller may see.
    pub(super) aliases: Vec<String>,
    /// Digests that show whether a tool has changed.
    pub(super) digests: Vec<[u8; 32]>,
}

impl ToolList {
    pub(super) fn new(tools: Vec<Value>) -> Self {
        let names: Vec<&str> = tools.iter().map(name_of).collect();
        let digest = |tool: &Value| Sha256::digest(tool.to_string()).into();
        Self { aliases: code_aliases(&names), digests: tools.iter().map(digest).collect(), tools: Arc::new(tools) }
    }

    pub(crate) fn tools(&self) -> &[Value] {
        &self.tools
    }
}

pub(crate) struct CatalogueStore {
    store: Store,
    /// By the uuid of the server; None if the database has no tools of it.
    lists: Mutex<HashMap<String, Option<Arc<ToolList>>>>,
    revision: AtomicU64,
}

impl CatalogueStore {
    pub(crate) fn new(store: Store) -> Self {
        Self { store, lists: Mutex::default(), revision: AtomicU64::new(0) }
    }

    /// A number that grows with every change.
    pub(crate) fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    pub(crate) fn get(&self, server: &str) -> Option<Arc<ToolList>> {
        self.lists.lock().get(server).cloned().flatten()
    }

    /// Sets the tools of a server in memory. Returns whether they have changed, so that they must be saved.
    pub(crate) fn update(&self, server: &str, tools: &[Value]) -> bool {
        if self.get(server).is_some_and(|known| *known.tools == tools) {
            return false;
        }
        let list = Arc::new(ToolList::new(tools.to_vec()));
        self.lists.lock().insert(server.to_owned(), Some(list));
        self.revision.fetch_add(1, Ordering::Release);
        true
    }

    /// Saves the tools of these servers in the database. Tools that cannot be saved are known until this process ends.
    pub(crate) async fn save(&self, servers: &[String]) {
        for server in servers {
            let Some(list) = self.get(server) else { continue };
            match self.store.set_catalogue(server, &list.tools).await {
                Ok(true) => {}
                Ok(false) => tracing::warn!("the tools of server {server} are too large to be saved"),
                Err(error) => tracing::warn!("cannot save the tools of server {server}: {error}"),
            }
        }
    }

    /// Loads the tools of those of these servers that are not known yet.
    pub(crate) async fn load(&self, servers: &[String]) -> Result<(), StoreError> {
        let missing: Vec<String> = {
            let lists = self.lists.lock();
            servers.iter().filter(|server| !lists.contains_key(*server)).cloned().collect()
        };
        if missing.is_empty() {
            return Ok(());
        }
        let found = self.store.catalogues(missing.clone()).await?;
        let mut lists = self.lists.lock();
        for mut stored in found {
            stored.tools = valid_items(stored.tools, "name");
            lists.entry(stored.server).or_insert_with(|| Some(Arc::new(ToolList::new(stored.tools))));
        }
        for server in missing {
            lists.entry(server).or_default();
        }
        drop(lists);
        self.revision.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Removes all servers but these, from the database too.
    pub(crate) async fn retain(&self, servers: &[String]) {
        let retained: HashSet<&String> = servers.iter().collect();
        let removed: Vec<String> =
            self.lists.lock().keys().filter(|server| !retained.contains(server)).cloned().collect();
        for server in removed {
            self.lists.lock().remove(&server);
            if let Err(error) = self.store.remove_catalogue(&server).await {
                tracing::warn!("cannot delete the tools of the removed server {server}: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn catalogues() -> (tempfile::TempDir, CatalogueStore) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("state")).unwrap();
        (directory, CatalogueStore::new(store))
    }

    async fn saved(catalogues: &CatalogueStore, server: &str) -> Option<Vec<Value>> {
        let found = catalogues.store.catalogues(vec![server.to_owned()]).await.unwrap();
        found.into_iter().next().map(|stored| stored.tools)
    }

    #[tokio::test]
    async fn tools_are_known_after_a_restart() {
        let (_directory, first) = catalogues();
        let tools = [json!({"name": "a-b"}), json!({"name": "a_b", "x": 1})];
        assert!(first.update("one", &tools));
        first.save(&["one".into()]).await;
        let next = CatalogueStore::new(first.store.clone());
        assert!(next.get("one").is_none());
        next.load(&["one".into(), "other".into()]).await.unwrap();
        let list = next.get("one").unwrap();
        assert_eq!((&list.tools[..], &list.aliases[..]), (&tools[..], &["a_b".to_owned(), "a_b_2".to_owned()][..]));
        assert_eq!(list.digests, first.get("one").unwrap().digests);
        assert!(!next.update("one", &tools), "the tools have not changed");
        assert!(next.get("other").is_none());
    }

    #[tokio::test]
    async fn changes_are_reported_and_current_tools_win_over_saved_ones() {
        let (_directory, catalogues) = catalogues();
        let before = catalogues.revision();
        assert!(catalogues.update("one", &[]));
        assert!(!catalogues.update("one", &[]));
        assert_eq!(catalogues.revision(), before + 1);
        assert!(catalogues.update("one", &[json!({"name": "new"})]));
        catalogues.store.set_catalogue("one", &[json!({"name": "old"})]).await.unwrap();
        catalogues.load(&["one".into()]).await.unwrap();
        assert_eq!(catalogues.get("one").unwrap().tools[0]["name"], "new");
    }

    #[tokio::test]
    async fn removed_servers_are_deleted_and_unknown_ones_stay_in_the_database() {
        let (_directory, catalogues) = catalogues();
        for server in ["removed", "here"] {
            catalogues.update(server, &[]);
        }
        catalogues.save(&["removed".into(), "here".into()]).await;
        catalogues.store.set_catalogue("of another server", &[]).await.unwrap();
        catalogues.retain(&["here".into()]).await;
        assert!(catalogues.get("removed").is_none() && catalogues.get("here").is_some());
        assert_eq!(saved(&catalogues, "removed").await, None);
        assert_eq!(saved(&catalogues, "here").await, Some(vec![]));
        assert_eq!(saved(&catalogues, "of another server").await, Some(vec![]));
    }

    #[tokio::test]
    async fn invalid_tools_in_the_database_are_ignored() {
        let (_directory, catalogues) = catalogues();
        catalogues
            .store
            .set_catalogue("one", &[json!(7), json!({"name": "a", "description": "\u{202e}"}), json!({})])
            .await
            .unwrap();
        catalogues.load(&["one".into()]).await.unwrap();
        assert_eq!(*catalogues.get("one").unwrap().tools, [json!({"name": "a", "description": "\\u{202e}"})]);
    }
}
