//! The preface, which an interpreter receives before code: the servers that the code may call and the saved tools of
//! its caller.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ringfence_core::sync::Mutex;
use ringfence_core::{Language, Principal};
use ringfence_store::{Store, StoreError};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::catalogue::KnownServer;

/// Maximum length of the documentation of a saved tool in the preface. Its source has all of it.
const MAX_DOC_CHARS: usize = 200;

/// Maximum number of cached lists.
const MAX_CACHED: usize = 1024;

/// Time for which a cached list is used. Another process, such as `ringfence code import-tools`, may save tools too.
const MAX_AGE: Duration = Duration::from_secs(1);

/// A cache of the saved tools of callers, as JSON for the preface.
#[derive(Default)]
pub(super) struct SavedTools(Mutex<HashMap<(Principal, Language), CachedList>>);

type ToolList = Arc<Vec<Value>>;

struct CachedList {
    tools: ToolList,
    read_at: Instant,
}

impl SavedTools {
    pub(super) async fn get(
        &self,
        store: &Store,
        principal: &Principal,
        language: Language,
    ) -> Result<ToolList, StoreError> {
        let key = (principal.clone(), language);
        if let Some(cached) = self.0.lock().get(&key).filter(|cached| cached.read_at.elapsed() < MAX_AGE) {
            return Ok(Arc::clone(&cached.tools));
        }
        let read_at = Instant::now();
        let tools = Box::pin(store.saved_tools(principal.name(), language)).await?;
        let described = tools.iter().map(|tool| {
            let doc: String = tool.doc.lines().next().unwrap_or_default().chars().take(MAX_DOC_CHARS).collect();
            json!({"name": tool.name, "version": tool.version, "doc": doc})
        });
        let saved = Arc::new(described.collect::<Vec<_>>());
        let mut cache = self.0.lock();
        if cache.len() >= MAX_CACHED {
            cache.clear();
        }
        cache.insert(key, CachedList { tools: Arc::clone(&saved), read_at });
        Ok(saved)
    }

    /// Removes a list from the cache, because a tool was saved or deleted.
    pub(super) fn invalidate(&self, principal: &Principal, language: Language) {
        self.0.lock().remove(&(principal.clone(), language));
    }
}

/// Builds the preface.
pub(super) fn build<'a>(servers: impl Iterator<Item = &'a KnownServer>, saved: &[Value]) -> Arc<str> {
    let servers: Vec<Value> = servers
        .map(|server| {
            json!({
                "name": server.name,
                "alias": server.alias,
                "description": server.description,
                "version": server.version,
            })
        })
        .collect();
    json!({"servers": servers, "saved": saved}).to_string().into()
}
