//! Tools as a person has accepted them. One that has become another since is held back until it is accepted again.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use ringfence_runtime::store::{Pin, Store, StoreError};
use serde_json::{Map, Value};

use super::catalogue::name_of;
use super::link::lock;

/// What a model goes by.
const SHOWN: [&str; 5] = ["title", "description", "inputSchema", "outputSchema", "annotations"];

pub(crate) struct Pins {
    store: Store,
    /// By the uuid of the server. One that has nothing accepted offers all.
    accepted: Mutex<HashMap<String, HashMap<String, Value>>>,
}

impl Pins {
    pub(crate) fn new(store: Store) -> Self {
        Self { store, accepted: Mutex::default() }
    }

    /// Reads what was accepted of these servers, here or by another program.
    pub(crate) async fn refresh(&self, servers: &[String]) -> Result<(), StoreError> {
        for server in servers {
            let pins = self.store.pins(server).await?;
            let accepted = pins.into_iter().map(|pin| (pin.tool, pin.accepted)).collect();
            lock(&self.accepted).insert(server.clone(), accepted);
        }
        Ok(())
    }

    /// Accepts tools of a server as they are now. If all are, what was accepted before is forgotten.
    pub(crate) async fn accept(
        &self,
        server: &str,
        tools: &[Value],
        named: Option<&[String]>,
    ) -> Result<usize, StoreError> {
        let is_meant = |tool: &&Value| named.is_none_or(|named| named.iter().any(|name| name == name_of(tool)));
        let pin = |tool: &Value| Pin { tool: name_of(tool).to_owned(), accepted: shown(tool) };
        let pins: Vec<Pin> = tools.iter().filter(is_meant).map(pin).collect();
        let count = pins.len();
        if named.is_none() {
            self.store.remove_pins(server, None).await?;
        }
        self.store.set_pins(server, pins).await?;
        self.refresh(&[server.to_owned()]).await?;
        Ok(count)
    }

    pub(crate) async fn forget(&self, server: &str) -> Result<(), StoreError> {
        self.store.remove_pins(server, None).await?;
        self.refresh(&[server.to_owned()]).await
    }

    /// Whether nothing of it was ever accepted, so that all is offered.
    pub(crate) fn accepts_all(&self, server: &str) -> bool {
        lock(&self.accepted).get(server).is_some_and(HashMap::is_empty)
    }

    pub(crate) fn is_pinned(&self, server: &str) -> bool {
        lock(&self.accepted).get(server).is_some_and(|accepted| !accepted.is_empty())
    }

    /// The tools that are not what was accepted; all, as long as that is not known.
    pub(crate) fn held(&self, server: &str, tools: &[Value]) -> HashSet<String> {
        let known = lock(&self.accepted);
        let accepted = known.get(server);
        if accepted.is_some_and(HashMap::is_empty) {
            return HashSet::new();
        }
        let is_other = |tool: &&Value| accepted.and_then(|tools| tools.get(name_of(tool))) != Some(&shown(tool));
        tools.iter().filter(is_other).map(|tool| name_of(tool).to_owned()).collect()
    }
}

fn shown(tool: &Value) -> Value {
    let fields = SHOWN.iter().filter_map(|key| Some(((*key).to_owned(), tool.get(key)?.clone())));
    Value::Object(fields.collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_tool_that_has_become_another_is_held_back() {
        let directory = tempfile::tempdir().unwrap();
        let pins = Pins::new(Store::open(directory.path()).unwrap());
        let tools =
            [json!({"name": "a", "description": "reads", "inputSchema": {"type": "object"}}), json!({"name": "b"})];
        assert_eq!(pins.held("u", &tools).len(), 2);
        pins.refresh(&["u".into()]).await.unwrap();
        assert!(pins.held("u", &tools).is_empty() && !pins.is_pinned("u"));
        pins.accept("u", &tools, None).await.unwrap();
        assert!(pins.held("u", &tools).is_empty() && pins.is_pinned("u"));
        let mut changed = tools.to_vec();
        changed[0]["description"] = json!("sends all files away");
        changed.push(json!({"name": "new"}));
        assert_eq!(pins.held("u", &changed), HashSet::from(["a".to_owned(), "new".to_owned()]));
        pins.accept("u", &changed, Some(&["a".into()])).await.unwrap();
        assert_eq!(pins.held("u", &changed), HashSet::from(["new".to_owned()]));
        pins.accept("u", &changed, None).await.unwrap();
        assert!(pins.held("u", &changed).is_empty());
        pins.forget("u").await.unwrap();
        assert!(!pins.is_pinned("u"));
    }
}
