//! Tools of real servers, and queries with the tools that they should find: from a file, or the built-in data.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::Value;

/// `tests/data/tools.json`, compressed.
const BUILT_IN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tools.json.zst"));

#[derive(Debug, Deserialize)]
pub(crate) struct ToolData {
    pub(crate) servers: Vec<ServerTools>,
    #[serde(default)]
    pub(crate) queries: Vec<Query>,
    /// A second set, of which no query was used to tune the search.
    #[serde(default)]
    pub(crate) unseen_queries: Vec<Query>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ServerTools {
    pub(crate) name: String,
    pub(crate) tools: Vec<Value>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Query {
    #[serde(rename = "query")]
    pub(crate) text: String,
    /// The right tools, as `server.tool`. One of them is enough.
    pub(crate) tools: Vec<String>,
    /// True if the query was not used to tune the search.
    #[serde(default, rename = "held_out")]
    pub(crate) is_held_out: bool,
}

impl ToolData {
    pub(crate) fn built_in() -> Result<Self> {
        let mut decoder = ruzstd::decoding::StreamingDecoder::new(BUILT_IN)?;
        let mut text = Vec::new();
        std::io::Read::read_to_end(&mut decoder, &mut text)?;
        serde_json::from_slice(&text).context("the built-in tool data is invalid")
    }

    pub(crate) fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let text = std::fs::read(path).with_context(|| format!("cannot read {shown}"))?;
        serde_json::from_slice(&text).with_context(|| format!("{shown} is not tool data in JSON"))
    }

    /// Reads the file if one is given, else the built-in data.
    pub(crate) fn read_or_built_in(file: Option<&Path>) -> Result<Self> {
        file.map_or_else(Self::built_in, Self::read)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn built_in_queries_name_built_in_tools() {
        let data = ToolData::built_in().unwrap();
        let tool_names = |server: &ServerTools| -> Vec<String> {
            server.tools.iter().map(|tool| format!("{}.{}", server.name, tool["name"].as_str().unwrap())).collect()
        };
        let names: HashSet<String> = data.servers.iter().flat_map(tool_names).collect();
        assert!(data.servers.len() >= 10 && names.len() >= 150 && data.queries.len() >= 80);
        assert_eq!(data.unseen_queries.len(), 60);
        for query in data.queries.iter().chain(&data.unseen_queries) {
            assert!(!query.tools.is_empty() && query.tools.iter().all(|tool| names.contains(tool)), "{query:?}");
        }
        let held_out = data.queries.iter().filter(|query| query.is_held_out).count();
        assert!(held_out * 3 >= data.queries.len() - 2, "{held_out}");
        let texts: HashSet<&str> = data.queries.iter().map(|query| query.text.as_str()).collect();
        assert!(
            data.unseen_queries.iter().all(|query| !texts.contains(query.text.as_str())),
            "an unseen query is a known one"
        );
        assert!(BUILT_IN.len() < 300 * 1024, "{}", BUILT_IN.len());
    }

    #[test]
    fn errors_name_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.json");
        let error = |path: &Path| ToolData::read(path).unwrap_err().to_string();
        assert_eq!(error(&path), format!("cannot read {}", path.display()));
        std::fs::write(&path, "[]").unwrap();
        assert_eq!(error(&path), format!("{} is not tool data in JSON", path.display()));
        std::fs::write(&path, r#"{"servers": [{"name": "a", "tools": []}]}"#).unwrap();
        assert!(ToolData::read(&path).unwrap().queries.is_empty());
    }
}
