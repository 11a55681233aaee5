//! What tools each server offered last, in memory and on the disk, so that they are known while it does not run.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ringfence_entries::code_aliases;
use ringfence_store::{Store, StoreError};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::catalogue::{name_of, offered};
use super::link::lock;

/// The tools of one server, as it listed them.
#[derive(Debug, Default)]
pub(super) struct ToolList {
    pub(super) tools: Arc<Vec<Value>>,
    /// What code calls them; the same whichever of them a caller may see.
    pub(super) aliases: Vec<String>,
    /// By which a tool is told from what it was.
    pub(super) digests: Vec<[u8; 32]>,
}

impl ToolList {
    pub(super) fn new(tools: Vec<Value>) -> Self {
        let names: Vec<&str> = tools.iter().map(name_of).collect();
        let digest = |tool: &Value| Sha256::digest(tool.to_string()).into();
        Self { aliases: code_aliases(&names), digests: tools.iter().map(digest).collect(), tools: Arc::new(tools) }
    }
}

pub(super) struct Remembered {
    store: Store,
    /// By the uuid of the server; nothing where the disk was looked at in vain.
    lists: Mutex<HashMap<String, Option<Arc<ToolList>>>>,
    revision: AtomicU64,
}

impl Remembered {
    pub(super) fn new(store: Store) -> Self {
        Self { store, lists: Mutex::default(), revision: AtomicU64::new(0) }
    }

    /// Grows whenever something else is remembered.
    pub(super) fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    pub(super) fn of(&self, server: &str) -> Option<Arc<ToolList>> {
        lock(&self.lists).get(server).cloned().flatten()
    }

    /// Takes note of what a server offers now. Says whether that is something new, which is then to be written down.
    pub(super) fn learn(&self, server: &str, tools: &[Value]) -> bool {
        if self.of(server).is_some_and(|known| *known.tools == tools) {
            return false;
        }
        let list = Arc::new(ToolList::new(tools.to_vec()));
        lock(&self.lists).insert(server.to_owned(), Some(list));
        self.revision.fetch_add(1, Ordering::Release);
        true
    }

    /// Puts on the disk what these servers offer. What cannot be kept is known as long as this process lives.
    pub(super) async fn write_down(&self, servers: &[String]) {
        for server in servers {
            let Some(list) = self.of(server) else { continue };
            match self.store.set_catalogue(server, &list.tools).await {
                Ok(true) => {}
                Ok(false) => tracing::warn!("the tools of server {server} are too many to be kept on the disk"),
                Err(error) => tracing::warn!("the tools of server {server} cannot be kept on the disk: {error}"),
            }
        }
    }

    /// Reads what is on the disk of those of these servers that nothing is known of yet.
    pub(super) async fn look_up(&self, servers: &[String]) -> Result<(), StoreError> {
        let missing: Vec<String> = {
            let lists = lock(&self.lists);
            servers.iter().filter(|server| !lists.contains_key(*server)).cloned().collect()
        };
        if missing.is_empty() {
            return Ok(());
        }
        let found = self.store.catalogues(missing.clone()).await?;
        let mut lists = lock(&self.lists);
        for mut stored in found {
            stored.tools = offered(stored.tools, "name");
            lists.entry(stored.server).or_insert_with(|| Some(Arc::new(ToolList::new(stored.tools))));
        }
        for server in missing {
            lists.entry(server).or_default();
        }
        drop(lists);
        self.revision.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Forgets all servers but these, on the disk too.
    pub(super) async fn keep_only(&self, servers: &[String]) {
        let kept: HashSet<&String> = servers.iter().collect();
        let gone: Vec<String> = lock(&self.lists).keys().filter(|server| !kept.contains(server)).cloned().collect();
        for server in gone {
            lock(&self.lists).remove(&server);
            if let Err(error) = self.store.remove_catalogue(&server).await {
                tracing::warn!("the tools of server {server}, which is no more, stay on the disk: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn remembered() -> (tempfile::TempDir, Remembered) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("state")).unwrap();
        (directory, Remembered::new(store))
    }

    async fn on_disk(remembered: &Remembered, server: &str) -> Option<Vec<Value>> {
        let found = remembered.store.catalogues(vec![server.to_owned()]).await.unwrap();
        found.into_iter().next().map(|stored| stored.tools)
    }

    #[tokio::test]
    async fn what_a_server_offered_is_known_after_a_restart() {
        let (_directory, first) = remembered();
        let tools = [json!({"name": "a-b"}), json!({"name": "a_b", "x": 1})];
        assert!(first.learn("one", &tools));
        first.write_down(&["one".into()]).await;
        let next = Remembered::new(first.store.clone());
        assert!(next.of("one").is_none());
        next.look_up(&["one".into(), "other".into()]).await.unwrap();
        let list = next.of("one").unwrap();
        assert_eq!((&list.tools[..], &list.aliases[..]), (&tools[..], &["a_b".to_owned(), "a_b_2".to_owned()][..]));
        assert_eq!(list.digests, first.of("one").unwrap().digests);
        assert!(!next.learn("one", &tools), "it is not new");
        assert!(next.of("other").is_none());
    }

    #[tokio::test]
    async fn what_is_new_is_told_and_what_is_newer_than_the_disk_stays() {
        let (_directory, remembered) = remembered();
        let before = remembered.revision();
        assert!(remembered.learn("one", &[]));
        assert!(!remembered.learn("one", &[]));
        assert_eq!(remembered.revision(), before + 1);
        assert!(remembered.learn("one", &[json!({"name": "new"})]));
        remembered.store.set_catalogue("one", &[json!({"name": "old"})]).await.unwrap();
        remembered.look_up(&["one".into()]).await.unwrap();
        assert_eq!(remembered.of("one").unwrap().tools[0]["name"], "new");
    }

    #[tokio::test]
    async fn a_server_that_is_no_more_is_forgotten_and_others_of_the_disk_are_not() {
        let (_directory, remembered) = remembered();
        for server in ["gone", "here"] {
            remembered.learn(server, &[]);
        }
        remembered.write_down(&["gone".into(), "here".into()]).await;
        remembered.store.set_catalogue("of another program", &[]).await.unwrap();
        remembered.keep_only(&["here".into()]).await;
        assert!(remembered.of("gone").is_none() && remembered.of("here").is_some());
        assert_eq!(on_disk(&remembered, "gone").await, None);
        assert_eq!(on_disk(&remembered, "here").await, Some(vec![]));
        assert_eq!(on_disk(&remembered, "of another program").await, Some(vec![]));
    }

    #[tokio::test]
    async fn what_is_no_tool_on_the_disk_is_left_out() {
        let (_directory, remembered) = remembered();
        remembered
            .store
            .set_catalogue("one", &[json!(7), json!({"name": "a", "description": "\u{202e}"}), json!({})])
            .await
            .unwrap();
        remembered.look_up(&["one".into()]).await.unwrap();
        assert_eq!(*remembered.of("one").unwrap().tools, [json!({"name": "a", "description": "\\u{202e}"})]);
    }
}
