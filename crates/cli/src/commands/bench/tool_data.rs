//! Tools of real servers, and questions with the tools that answer them: a file, or those that the program brings along.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::Value;

/// `tests/data/tools.json`, packed.
const BUILT_IN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tools.json.zst"));

#[derive(Debug, Deserialize)]
pub(super) struct ToolData {
    pub(super) servers: Vec<ServerData>,
    #[serde(default)]
    pub(super) queries: Vec<Question>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ServerData {
    pub(super) name: String,
    pub(super) tools: Vec<Value>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Question {
    pub(super) query: String,
    /// As `server.tool`. One of them is enough.
    pub(super) tools: Vec<String>,
    /// Whether the search was tuned without it.
    #[serde(default)]
    pub(super) held_out: bool,
}

impl ToolData {
    pub(super) fn read(file: Option<&Path>) -> Result<Self> {
        let text = match file {
            Some(path) => std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?,
            None => unpack()?,
        };
        let of = file.map_or_else(|| "the built-in data".into(), |path| path.display().to_string());
        serde_json::from_slice(&text).with_context(|| format!("{of}: not tools and questions in JSON"))
    }
}

fn unpack() -> Result<Vec<u8>> {
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(BUILT_IN)?;
    let mut text = Vec::new();
    std::io::Read::read_to_end(&mut decoder, &mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn what_is_brought_along_is_real_and_answers_its_questions() {
        let data = ToolData::read(None).unwrap();
        let named = |server: &ServerData| -> Vec<String> {
            server.tools.iter().map(|tool| format!("{}.{}", server.name, tool["name"].as_str().unwrap())).collect()
        };
        let names: HashSet<String> = data.servers.iter().flat_map(named).collect();
        assert!(data.servers.len() >= 10 && names.len() >= 150 && data.queries.len() >= 80);
        for query in &data.queries {
            assert!(!query.tools.is_empty() && query.tools.iter().all(|tool| names.contains(tool)), "{query:?}");
        }
        let held_out = data.queries.iter().filter(|query| query.held_out).count();
        assert!(held_out * 3 >= data.queries.len() - 2, "{held_out}");
        assert!(BUILT_IN.len() < 300 * 1024, "{}", BUILT_IN.len());
    }

    #[test]
    fn a_file_that_is_none_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.json");
        assert!(format!("{:#}", ToolData::read(Some(&path)).unwrap_err()).contains("x.json cannot be read"));
        std::fs::write(&path, "[]").unwrap();
        assert!(format!("{:#}", ToolData::read(Some(&path)).unwrap_err()).contains("x.json: not tools"));
        std::fs::write(&path, r#"{"servers": [{"name": "a", "tools": []}]}"#).unwrap();
        assert!(ToolData::read(Some(&path)).unwrap().queries.is_empty());
    }
}
