//! What the tools of servers cost an agent that has them all in its context, beside what code mode costs it.

use std::path::Path;

use anyhow::{Context as _, Result};
use ringfence_gateway::{code_mode_tools, stored_servers};
use serde_json::{Map, Value};

use super::report::Section;
use super::rows::{Bound, Figure, Row};
use super::tool_data::{ServerData, ToolData};
use crate::commands::server::registry::Registry;

const ENCODING: &str = "o200k_base";

/// Code mode must cost less than 600.
const MOST_TOKENS: f64 = 599.0;

/// What a model is shown of a tool.
const SHOWN: [&str; 3] = ["name", "description", "inputSchema"];

pub(super) fn measure(file: Option<&Path>) -> Result<Section> {
    let encoding = tiktoken::get_encoding(ENCODING).context("there is no such encoding")?;
    let count = |tools: &[Value]| -> f64 {
        let tokens: usize = tools.iter().map(|tool| encoding.count(&shown(tool))).sum();
        f64::from(u32::try_from(tokens).unwrap_or(u32::MAX))
    };
    let (servers, mut left_out) = match file {
        Some(_) => (ToolData::read(file)?.servers, Vec::new()),
        None => configured()?,
    };
    let (servers, of) = if servers.is_empty() {
        left_out.push(
            "your own servers: no tools of any are known yet; those that ringfence brings along are counted".into(),
        );
        (ToolData::read(None)?.servers, "built-in")
    } else {
        (servers, if file.is_some() { "given" } else { "configured" })
    };
    let tools: usize = servers.iter().map(|server| server.tools.len()).sum();
    let each: Vec<Row> = servers
        .iter()
        .map(|server| {
            Row::single(format!("{}, {}", server.name, number(server.tools.len())), "tokens", count(&server.tools))
        })
        .collect();
    let code = code_mode_tools();
    let ours = Row::single(format!("code mode, {}", number(code.len())), "tokens", count(&code)).target(
        Figure::Value,
        Bound::AtMost,
        MOST_TOKENS,
    );
    let all = each.iter().map(|row| row.value).sum();
    let all = Row::single(format!("all {} servers that are {of}, {}", servers.len(), number(tools)), "tokens", all)
        .against(Some(&ours));
    Ok(Section { rows: [ours, all].into_iter().chain(each).collect(), left_out })
}

/// As the spec counts: the JSON of what a model is shown, without spaces.
fn shown(tool: &Value) -> String {
    let fields = SHOWN.iter().filter_map(|key| Some(((*key).to_owned(), tool.get(key)?.clone())));
    Value::Object(fields.collect::<Map<_, _>>()).to_string()
}

fn number(tools: usize) -> String {
    if tools == 1 { "1 tool".into() } else { format!("{tools} tools") }
}

/// The servers of this user of which tools are known, and those of which none are.
fn configured() -> Result<(Vec<ServerData>, Vec<String>)> {
    let registry = Registry::open(None).map_err(|failure| anyhow::anyhow!("{failure}"))?;
    let known = registry.wait(stored_servers(&registry.store, &registry.listing().entries()))?;
    let (mut servers, mut left_out) = (Vec::new(), Vec::new());
    for server in known.servers() {
        if !server.tools.is_empty() {
            servers.push(ServerData { name: server.name.clone(), tools: server.tools.to_vec() });
        } else if server.status == "disabled" {
            left_out.push(format!("{}: it is disabled", server.name));
        } else {
            left_out.push(format!("{}: its tools are not known; they are once it was connected", server.name));
        }
    }
    Ok((servers, left_out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_mode_is_cheap_whatever_it_is_compared_with() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tools.json");
        let tool = r#"{"name": "a", "description": "b", "inputSchema": {"type": "object"}, "outputSchema": {"x": 1}}"#;
        std::fs::write(&path, format!(r#"{{"servers": [{{"name": "s", "tools": [{tool}, {tool}]}}]}}"#)).unwrap();
        let section = measure(Some(&path)).unwrap();
        let [ours, all, one] = &section.rows[..] else { panic!("{section:?}") };
        assert!(ours.targets[0].met && ours.value > 100.0, "{ours:?}");
        assert_eq!((all.what.as_str(), one.what.as_str()), ("all 1 servers that are given, 2 tools", "s, 2 tools"));
        assert!((all.value - one.value).abs() < 1e-9 && all.ratio.is_some());
    }

    #[test]
    fn tokens_are_those_of_the_encoding() {
        let encoding = tiktoken::get_encoding(ENCODING).unwrap();
        assert_eq!(encoding.encode("hello world"), [24912, 2375]);
        let tool = serde_json::json!({"x": 1, "inputSchema": {}, "name": "a", "title": "T"});
        assert_eq!(shown(&tool), r#"{"name":"a","inputSchema":{}}"#);
    }
}
