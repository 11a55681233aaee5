//! What an interpreter is told before code runs in it: which servers it may call, and what its caller has saved.

use ringfence_core::sync::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

use ringfence_core::Language;
use ringfence_core::Principal;
use ringfence_store::{Store, StoreError};
use serde_json::{Value, json};

use crate::catalogue::KnownServer;

/// Of what is told of a saved tool, in characters; the rest comes with its source.
const MOST_DOC: usize = 200;

/// Callers whose saved tools are remembered.
const MOST_CALLERS: usize = 1024;

/// What callers have saved, as it is told; read once, and again when it changes here.
#[derive(Default)]
pub(super) struct Prefaces(Mutex<Saved>);

type Saved = HashMap<(Principal, Language), Arc<Vec<Value>>>;

impl Prefaces {
    pub(super) async fn saved(
        &self,
        store: &Store,
        principal: &Principal,
        language: Language,
    ) -> Result<Arc<Vec<Value>>, StoreError> {
        let key = (principal.clone(), language);
        if let Some(saved) = self.known().get(&key) {
            return Ok(Arc::clone(saved));
        }
        let tools = Box::pin(store.saved_tools(principal.name(), language)).await?;
        let told = tools.iter().map(|tool| {
            let doc: String = tool.doc.lines().next().unwrap_or_default().chars().take(MOST_DOC).collect();
            json!({"name": tool.name, "version": tool.version, "doc": doc})
        });
        let saved = Arc::new(told.collect::<Vec<_>>());
        let mut known = self.known();
        if known.len() >= MOST_CALLERS {
            known.clear();
        }
        known.insert(key, Arc::clone(&saved));
        Ok(saved)
    }

    /// Something was saved or deleted.
    pub(super) fn forget(&self, principal: &Principal, language: Language) {
        self.known().remove(&(principal.clone(), language));
    }

    fn known(&self) -> MutexGuard<'_, Saved> {
        self.0.lock()
    }
}

pub(super) fn compose<'a>(servers: impl Iterator<Item = &'a KnownServer>, saved: &[Value]) -> Arc<str> {
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
