//! All configured servers with their known tools, whether they run or not, as a profile shows them to code.
//!
//! The order is that of the entries. Aliases are derived from the names of all servers, so they depend neither on the
//! profile nor on which servers run. Withheld tools and tools outside the profile are left out.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use ringfence_entries::{Profile, ServerEntry, Transport, code_aliases};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::name_of;
use super::search::{Hit, Index, SearchableServer};
use super::store::ToolList;

/// A server as code and searches see it.
#[derive(Debug, Clone)]
pub struct KnownServer {
    pub name: String,
    pub uuid: String,
    /// The name of the server in code.
    pub alias: String,
    /// Empty if its entry has none.
    pub description: String,
    /// The working directory that its entry names, if it is a program.
    pub cwd: Option<String>,
    /// `connected`, `connecting`, `error`, `idle`, `disabled`, `stopped` or `not running`.
    pub status: &'static str,
    /// Changes with the tools; stays the same after a restart.
    pub version: String,
    /// The tools as the server lists them, each name once. Empty while the server is disabled.
    pub tools: Arc<Vec<Value>>,
    /// The names of the tools in code, in the same order.
    pub tool_aliases: Arc<Vec<String>>,
}

impl KnownServer {
    /// Finds a tool by the server's own name for it, and returns it with its alias.
    pub fn tool(&self, name: &str) -> Option<(&Value, &str)> {
        let index = self.tools.iter().position(|tool| name_of(tool) == name)?;
        Some((&self.tools[index], &self.tool_aliases[index]))
    }
}

/// The servers of one profile.
#[derive(Debug, Default)]
pub struct KnownServers {
    servers: Vec<KnownServer>,
    index: OnceLock<Index>,
}

/// Everything that is known of one entry.
pub(crate) struct Candidate<'a> {
    pub(crate) entry: &'a ServerEntry,
    pub(crate) status: &'static str,
    pub(crate) list: Option<Arc<ToolList>>,
    /// The names of tools that are withheld.
    pub(crate) withheld: HashSet<String>,
}

impl KnownServers {
    /// `candidates` must contain all entries, because aliases depend on all names.
    pub(crate) fn new(profile: &Profile, candidates: &[Candidate<'_>]) -> Self {
        let names: Vec<&str> = candidates.iter().map(|candidate| candidate.entry.name.as_str()).collect();
        let aliased = candidates.iter().zip(code_aliases(&names));
        let in_profile =
            aliased.filter(|(candidate, _)| profile.has_server(&candidate.entry.name, &candidate.entry.uuid));
        let servers = in_profile.map(|(candidate, alias)| known_server(profile, candidate, alias)).collect();
        Self { servers, index: OnceLock::new() }
    }

    /// The servers in the order of the entries.
    pub fn servers(&self) -> &[KnownServer] {
        &self.servers
    }

    /// Finds a server by its name, or else by its alias.
    pub fn find(&self, name_or_alias: &str) -> Option<&KnownServer> {
        let by_name = self.servers.iter().find(|server| server.name == name_or_alias);
        by_name.or_else(|| self.servers.iter().find(|server| server.alias == name_or_alias))
    }

    /// Returns the best tools for a query. Hits contain indices into [`Self::servers`] and the tools of each server.
    ///
    /// The first query builds the index, which takes some milliseconds for very many tools.
    pub fn search(&self, query: &str, limit: usize) -> Vec<Hit> {
        let index = self.index.get_or_init(|| {
            let searched = self.servers.iter().map(|server| SearchableServer {
                name: &server.name,
                description: &server.description,
                tools: &server.tools,
            });
            Index::new(&searched.collect::<Vec<_>>())
        });
        index.search(query, limit)
    }
}

fn known_server(profile: &Profile, candidate: &Candidate<'_>, alias: String) -> KnownServer {
    let Candidate { entry, status, list, withheld } = candidate;
    let list = list.as_ref().filter(|_| entry.enable);
    let (mut tools, mut tool_aliases, mut version) = (Arc::default(), Vec::new(), Sha256::new());
    if let Some(list) = list {
        let mut names = HashSet::new();
        let is_shown = |index: &usize| {
            let name = name_of(&list.tools[*index]);
            profile.has_tool(&entry.name, name) && !withheld.contains(name) && names.insert(name)
        };
        let shown: Vec<usize> = (0..list.tools.len()).filter(is_shown).collect();
        for index in &shown {
            version.update(list.digests[*index]);
        }
        tool_aliases.extend(shown.iter().map(|index| list.aliases[*index].clone()));
        tools = if shown.len() == list.tools.len() {
            Arc::clone(&list.tools)
        } else {
            Arc::new(shown.iter().map(|index| list.tools[*index].clone()).collect())
        };
    }
    KnownServer {
        name: entry.name.clone(),
        uuid: entry.uuid.clone(),
        alias,
        description: entry.description.clone().unwrap_or_default(),
        cwd: match &entry.transport {
            Transport::Stdio(settings) => settings.cwd.as_ref().map(|cwd| cwd.to_string_lossy().into_owned()),
            Transport::Http(_) | Transport::Sse(_) | Transport::Websocket(_) | Transport::Remote(_) => None,
        },
        status,
        version: digest_prefix(&version.finalize()),
        tools,
        tool_aliases: Arc::new(tool_aliases),
    }
}

/// The first eight bytes of a digest as text.
fn digest_prefix(digest: &[u8]) -> String {
    let prefix = digest.iter().take(8).fold(0_u64, |prefix, byte| prefix << 8 | u64::from(*byte));
    format!("{prefix:016x}")
}

#[cfg(test)]
mod tests {
    use ringfence_entries::entry_from_json;
    use serde_json::json;

    use super::*;

    fn entry(name: &str) -> ServerEntry {
        entry_from_json(name, &json!({"command": "x", "description": "Does things"})).unwrap().0
    }

    fn candidate<'a>(entry: &'a ServerEntry, names: &[&str]) -> Candidate<'a> {
        let list = ToolList::new(names.iter().map(|name| json!({"name": name})).collect());
        Candidate { entry, status: "connected", list: Some(Arc::new(list)), withheld: HashSet::new() }
    }

    fn tools(server: &KnownServer) -> Vec<(&str, &str)> {
        server.tools.iter().map(name_of).zip(server.tool_aliases.iter().map(String::as_str)).collect()
    }

    #[test]
    fn aliases_and_order_do_not_depend_on_the_profile() {
        let entries = ["My Git", "my-git", "other"].map(entry);
        let all = entries.each_ref().map(|entry| candidate(entry, &["a.b", "a-b", "c"]));
        let full = KnownServers::new(&Profile::default(), &all);
        let aliases: Vec<&str> = full.servers().iter().map(|server| server.alias.as_str()).collect();
        assert_eq!(aliases, ["my_git", "my_git_2", "other"]);
        let profile = Profile { servers: Some(vec!["my-git".into()]), deny: vec!["a.b".into()], ..Profile::default() };
        let part = KnownServers::new(&profile, &all);
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
    fn withheld_disabled_and_duplicate_tools_are_left_out() {
        let mut entries = ["a", "b"].map(entry);
        entries[1].enable = false;
        let mut all = entries.each_ref().map(|entry| candidate(entry, &["x", "y", "x"]));
        all[0].withheld.insert("y".into());
        let known = KnownServers::new(&Profile::default(), &all);
        assert_eq!(tools(&known.servers()[0]), [("x", "x")]);
        assert_eq!(tools(&known.servers()[1]), []);
        assert_eq!(known.search("y", 5), []);
        assert_eq!(known.search("x", 5).len(), 1);
    }

    #[test]
    fn version_depends_on_the_shown_tools() {
        let entry = entry("a");
        let version = |names: &[&str], deny: &[&str]| {
            let deny = deny.iter().map(|name| (*name).to_owned()).collect();
            let known = KnownServers::new(&Profile { deny, ..Profile::default() }, &[candidate(&entry, names)]);
            known.servers()[0].version.clone()
        };
        assert_eq!(version(&["x", "y"], &[]), version(&["x", "y"], &[]));
        assert_eq!(version(&["x", "y"], &["y"]), version(&["x"], &[]));
        assert_ne!(version(&["x", "y"], &[]), version(&["x"], &[]));
        assert_ne!(version(&["x"], &[]), version(&[], &[]));
    }
}
