//! All configured servers with the tools that are known of them, whether they run or not, as a profile shows them.
//!
//! The order is that of the entries. Aliases are made of all names there are, so they hang neither on the profile nor on
//! what runs. Tools that are held back or not offered are not there.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use ringfence_entries::{Profile, ServerEntry, code_aliases};
use ringfence_store::{Store, StoreError};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::catalogue::name_of;
use super::pins::Pins;
use super::remembered::{Remembered, ToolList};
use crate::search::{Hit, Index, Searched};

/// A server as code and searches know it.
#[derive(Debug, Clone)]
pub struct KnownServer {
    pub name: String,
    pub uuid: String,
    /// What code calls it.
    pub alias: String,
    /// Empty if its entry says nothing.
    pub description: String,
    /// `connected`, `connecting`, `error`, `disabled`, `stopped` or `not running`.
    pub status: &'static str,
    /// Another one whenever the tools are others; the same after a restart.
    pub version: String,
    /// As the server lists them, each name once. None while it is disabled.
    pub tools: Arc<Vec<Value>>,
    /// What code calls them, in their order.
    pub tool_aliases: Arc<Vec<String>>,
}

impl KnownServer {
    /// A tool by its own name, and its alias.
    pub fn tool(&self, name: &str) -> Option<(&Value, &str)> {
        let place = self.tools.iter().position(|tool| name_of(tool) == name)?;
        Some((&self.tools[place], &self.tool_aliases[place]))
    }
}

/// What one profile shows.
#[derive(Debug, Default)]
pub struct KnownServers {
    servers: Vec<KnownServer>,
    index: OnceLock<Index>,
}

/// All that is known of one entry.
pub(super) struct Candidate<'a> {
    pub(super) entry: &'a ServerEntry,
    pub(super) status: &'static str,
    pub(super) list: Option<Arc<ToolList>>,
    pub(super) held: HashSet<String>,
}

impl<'a> Candidate<'a> {
    pub(super) fn of(entry: &'a ServerEntry, status: &'static str, remembered: &Remembered, pins: &Pins) -> Self {
        let list = remembered.of(&entry.uuid);
        let held = list.as_ref().map(|list| pins.held_tools(&entry.uuid, &list.tools)).unwrap_or_default();
        Self { entry, status, list, held }
    }
}

impl KnownServers {
    /// `all` are the candidates of all entries there are.
    pub(super) fn of(profile: &Profile, all: &[Candidate<'_>]) -> Self {
        let names: Vec<&str> = all.iter().map(|candidate| candidate.entry.name.as_str()).collect();
        let shown = all.iter().zip(code_aliases(&names));
        let shown = shown.filter(|(candidate, _)| profile.has_server(&candidate.entry.name, &candidate.entry.uuid));
        let servers = shown.map(|(candidate, alias)| known(profile, candidate, alias)).collect();
        Self { servers, index: OnceLock::new() }
    }

    /// In the order of the entries.
    pub fn servers(&self) -> &[KnownServer] {
        &self.servers
    }

    /// A server by its name, or else by its alias.
    pub fn find(&self, name_or_alias: &str) -> Option<&KnownServer> {
        let named = self.servers.iter().find(|server| server.name == name_or_alias);
        named.or_else(|| self.servers.iter().find(|server| server.alias == name_or_alias))
    }

    /// The best tools for a question. Places are those in [`Self::servers`] and in the tools of each.
    ///
    /// The first question makes the index, which takes some milliseconds where there are very many tools.
    pub fn search(&self, query: &str, limit: usize) -> Vec<Hit> {
        let index = self.index.get_or_init(|| {
            let searched = self.servers.iter().map(|server| Searched {
                server: &server.name,
                description: &server.description,
                tools: &server.tools,
            });
            Index::new(&searched.collect::<Vec<_>>())
        });
        index.search(query, limit)
    }
}

fn known(profile: &Profile, candidate: &Candidate<'_>, alias: String) -> KnownServer {
    let Candidate { entry, status, list, held } = candidate;
    let list = list.as_ref().filter(|_| entry.enable);
    let (mut tools, mut tool_aliases, mut version) = (Arc::default(), Vec::new(), Sha256::new());
    if let Some(list) = list {
        let mut names = HashSet::new();
        let is_shown = |place: &usize| {
            let name = name_of(&list.tools[*place]);
            profile.has_tool(&entry.name, name) && !held.contains(name) && names.insert(name)
        };
        let shown: Vec<usize> = (0..list.tools.len()).filter(is_shown).collect();
        for place in &shown {
            version.update(list.digests[*place]);
        }
        tool_aliases.extend(shown.iter().map(|place| list.aliases[*place].clone()));
        tools = if shown.len() == list.tools.len() {
            Arc::clone(&list.tools)
        } else {
            Arc::new(shown.iter().map(|place| list.tools[*place].clone()).collect())
        };
    }
    KnownServer {
        name: entry.name.clone(),
        uuid: entry.uuid.clone(),
        alias,
        description: entry.description.clone().unwrap_or_default(),
        status,
        version: short(&version.finalize()),
        tools,
        tool_aliases: Arc::new(tool_aliases),
    }
}

/// The start of a digest.
fn short(digest: &[u8]) -> String {
    let start = digest.iter().take(8).fold(0_u64, |start, byte| start << 8 | u64::from(*byte));
    format!("{start:016x}")
}

/// What is known of servers without any of them running: what the store has of these entries, which are all there are.
pub async fn stored_servers(store: &Store, entries: &[ServerEntry]) -> Result<KnownServers, StoreError> {
    let uuids: Vec<String> = entries.iter().map(|entry| entry.uuid.clone()).collect();
    let (remembered, pins) = (Remembered::new(store.clone()), Pins::new(store.clone(), false));
    remembered.look_up(&uuids).await?;
    pins.refresh(&uuids).await?;
    let status = |entry: &ServerEntry| if entry.enable { "not running" } else { "disabled" };
    let all: Vec<Candidate<'_>> =
        entries.iter().map(|entry| Candidate::of(entry, status(entry), &remembered, &pins)).collect();
    Ok(KnownServers::of(&Profile::default(), &all))
}

#[cfg(test)]
mod tests {
    use ringfence_entries::entry_from_json;
    use ringfence_store::OnConflict;
    use serde_json::json;

    use super::*;
    use crate::hosting::catalogue::Catalogue;

    fn entry(name: &str) -> ServerEntry {
        entry_from_json(name, &json!({"command": "x", "description": "Does things"})).unwrap().0
    }

    fn candidate<'a>(entry: &'a ServerEntry, names: &[&str]) -> Candidate<'a> {
        let list = ToolList::new(names.iter().map(|name| json!({"name": name})).collect());
        Candidate { entry, status: "connected", list: Some(Arc::new(list)), held: HashSet::new() }
    }

    fn tools(server: &KnownServer) -> Vec<(&str, &str)> {
        server.tools.iter().map(name_of).zip(server.tool_aliases.iter().map(String::as_str)).collect()
    }

    #[test]
    fn aliases_and_order_hang_neither_on_the_profile_nor_on_what_runs() {
        let entries = ["My Git", "my-git", "other"].map(entry);
        let all = entries.each_ref().map(|entry| candidate(entry, &["a.b", "a-b", "c"]));
        let full = KnownServers::of(&Profile::default(), &all);
        let aliases: Vec<&str> = full.servers().iter().map(|server| server.alias.as_str()).collect();
        assert_eq!(aliases, ["my_git", "my_git_2", "other"]);
        let profile = Profile { servers: Some(vec!["my-git".into()]), deny: vec!["a.b".into()], ..Profile::default() };
        let part = KnownServers::of(&profile, &all);
        assert_eq!(part.servers().len(), 1);
        let server = &part.servers()[0];
        assert_eq!((server.alias.as_str(), server.description.as_str()), ("my_git_2", "Does things"));
        assert_eq!(tools(server), [("a-b", "a_b_2"), ("c", "c")]);
        assert_eq!(part.find("my_git_2").map(|server| &server.name), Some(&"my-git".to_owned()));
        assert!(part.find("My Git").is_none() && part.find("my_git").is_none());
        assert_eq!(server.tool("c").map(|(_, alias)| alias), Some("c"));
        assert!(server.tool("a.b").is_none());
    }

    #[test]
    fn what_is_held_back_disabled_or_there_twice_is_not_known() {
        let mut entries = ["a", "b"].map(entry);
        entries[1].enable = false;
        let mut all = entries.each_ref().map(|entry| candidate(entry, &["x", "y", "x"]));
        all[0].held.insert("y".into());
        let known = KnownServers::of(&Profile::default(), &all);
        assert_eq!(tools(&known.servers()[0]), [("x", "x")]);
        assert_eq!(tools(&known.servers()[1]), []);
        assert_eq!(known.search("y", 5), []);
        assert_eq!(known.search("x", 5).len(), 1);
    }

    #[test]
    fn the_version_is_that_of_what_is_shown() {
        let entry = entry("a");
        let version = |names: &[&str], deny: &[&str]| {
            let deny = deny.iter().map(|name| (*name).to_owned()).collect();
            let known = KnownServers::of(&Profile { deny, ..Profile::default() }, &[candidate(&entry, names)]);
            known.servers()[0].version.clone()
        };
        assert_eq!(version(&["x", "y"], &[]), version(&["x", "y"], &[]));
        assert_eq!(version(&["x", "y"], &["y"]), version(&["x"], &[]));
        assert_ne!(version(&["x", "y"], &[]), version(&["x"], &[]));
        assert_ne!(version(&["x"], &[]), version(&[], &[]));
    }

    #[tokio::test]
    async fn the_store_says_what_servers_that_do_not_run_offer() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("state")).unwrap();
        let entry = store.add_server(entry("a"), None, OnConflict::Refuse).await.unwrap();
        let [seen, changed] = [json!({"name": "seen"}), json!({"name": "changed", "description": "was"})];
        store.set_catalogue(&entry.uuid, &[seen.clone(), changed.clone()]).await.unwrap();
        let offered = Catalogue { tools: vec![seen.clone(), changed], ..Catalogue::default() };
        Pins::new(store.clone(), false).accept(&entry.uuid, &offered, None).await.unwrap();
        store.set_catalogue(&entry.uuid, &[seen, json!({"name": "changed", "description": "is"})]).await.unwrap();
        let known = stored_servers(&store, &[entry]).await.unwrap();
        assert_eq!(tools(&known.servers()[0]), [("seen", "seen")]);
        assert_eq!(known.servers()[0].status, "not running");
    }
}
