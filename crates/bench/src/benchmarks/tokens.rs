//! Tokens that the tools of servers cost an agent that has all of them in its context, compared with code mode, and
//! tokens of the session tools.

use anyhow::{Context as _, Result};
use ringfence_config::{CONFIG_FILE_VARIABLE, Environment, Sources};
use ringfence_gateway::{KnownServers, SessionOptions, code_mode_tools, session_tools, stored_servers};
use ringfence_store::Store;
use serde_json::{Map, Value};

use super::Setup;
use crate::report::{Bound, Figure, Row, Section};
use crate::terminal::notice;
use crate::tool_data::{ServerTools, ToolData};

const ENCODING: &str = "o200k_base";

/// The target for the two tools of code mode is less than 260.
const MAX_CODE_MODE_TOKENS: f64 = 259.0;

/// The target for all session tools is less than 1,100.
const MAX_SESSION_TOKENS: f64 = 1099.0;

const NETWORK: &str = "Network: package registries (pip, npm) only.";

/// The fields of a tool that a model sees.
const VISIBLE_FIELDS: [&str; 3] = ["name", "description", "inputSchema"];

pub(super) fn measure(setup: &Setup) -> Result<Section> {
    let encoding = tiktoken::get_encoding(ENCODING).with_context(|| format!("unknown encoding {ENCODING}"))?;
    let count = |tools: &[Value]| -> f64 {
        let tokens: usize = tools.iter().map(|tool| encoding.count(&visible_json(tool))).sum();
        f64::from(u32::try_from(tokens).unwrap_or(u32::MAX))
    };
    let (mut servers, mut not_measured) = match &setup.tool_data {
        Some(file) => (ToolData::read(file)?.servers, Vec::new()),
        None => configured_servers()?,
    };
    let mut origin = if setup.tool_data.is_some() { "given" } else { "configured" };
    if servers.is_empty() {
        not_measured
            .push("configured servers: no tools are known yet; the built-in servers are counted instead".into());
        (servers, origin) = (ToolData::built_in()?.servers, "built-in");
    }
    let per_server: Vec<Row> = servers
        .iter()
        .map(|server| {
            let label = format!("{}, {}", server.name, tool_count(server.tools.len()));
            Row::single(label, "tokens", count(&server.tools))
        })
        .collect();
    let code_tools = code_mode_tools(NETWORK);
    let code_label = format!("code mode, {}", tool_count(code_tools.len()));
    let code_mode = Row::single(code_label, "tokens", count(&code_tools));
    let code_mode = code_mode.target(Figure::Value, Bound::AtMost, MAX_CODE_MODE_TOKENS);
    let session_tools = session_tools(&default_options());
    let session_label = format!("session tools, {}", tool_count(session_tools.len()));
    let session_row = Row::single(session_label, "tokens", count(&session_tools));
    let session_row = session_row.target(Figure::Value, Bound::AtMost, MAX_SESSION_TOKENS);
    let tools = tool_count(servers.iter().map(|server| server.tools.len()).sum());
    let total = per_server.iter().map(|row| row.value).sum();
    let total = Row::single(format!("all {} {origin} servers, {tools}", servers.len()), "tokens", total)
        .compared_with(Some(&code_mode));
    Ok(Section { rows: [code_mode, session_row, total].into_iter().chain(per_server).collect(), not_measured })
}

/// The templates and flavors of a server without configuration, on a host with every interpreter.
fn default_options() -> SessionOptions {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    SessionOptions {
        templates: names(&["python", "node", "bash", "data"]),
        default_template: "python".into(),
        languages: "Python, JavaScript (Node.js), bash".into(),
        packages: "data has numpy pandas matplotlib pillow requests openpyxl".into(),
        flavors: names(&["small", "medium", "large"]),
        default_flavor: "small".into(),
        network: NETWORK.into(),
    }
}

/// Returns the JSON of the fields that a model sees, without spaces.
fn visible_json(tool: &Value) -> String {
    let fields = VISIBLE_FIELDS.iter().filter_map(|key| Some(((*key).to_owned(), tool.get(key)?.clone())));
    Value::Object(fields.collect::<Map<_, _>>()).to_string()
}

fn tool_count(tools: usize) -> String {
    if tools == 1 { "1 tool".into() } else { format!("{tools} tools") }
}

/// Returns this user's servers whose tools are known, and a note for each of the others.
fn configured_servers() -> Result<(Vec<ServerTools>, Vec<String>)> {
    let known = read_known_servers()?;
    let (mut servers, mut not_measured) = (Vec::new(), Vec::new());
    for server in known.servers() {
        if !server.tools.is_empty() {
            servers.push(ServerTools { name: server.name.clone(), tools: server.tools.to_vec() });
        } else if server.status == "disabled" {
            not_measured.push(format!("{}: disabled", server.name));
        } else {
            not_measured.push(format!("{}: its tools are unknown until it has been connected once", server.name));
        }
    }
    Ok((servers, not_measured))
}

/// Reads the servers of the configuration and the store, as `ringfence server list` does.
fn read_known_servers() -> Result<KnownServers> {
    let environment = Environment::from_process();
    let file = environment.get(CONFIG_FILE_VARIABLE).filter(|path| !path.is_empty()).map(Into::into);
    let sources = Sources { file, environment, flags: Vec::new() };
    let configuration = ringfence_config::load(&sources)?;
    let state = configuration.state_directory()?;
    let store = Store::open(&state)?;
    for report in ringfence_store::damage_reports(&state) {
        notice(&format!("warning: {}; {}", report.message(), report.hint()));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listing = ringfence_servers::list(sources, &configuration, &store).await;
        Ok(stored_servers(&store, &listing.entries()).await?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;
    use crate::workload::Workload;

    #[test]
    fn own_tools_meet_their_targets_and_servers_are_compared_with_code_mode() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tools.json");
        let tool = r#"{"name": "a", "description": "b", "inputSchema": {"type": "object"}, "outputSchema": {"x": 1}}"#;
        std::fs::write(&path, format!(r#"{{"servers": [{{"name": "s", "tools": [{tool}, {tool}]}}]}}"#)).unwrap();
        let workload = Workload::new(true, None);
        let setup = Setup { workload, host: Host::inspect(None), ringfence: None, tool_data: Some(path) };
        let section = measure(&setup).unwrap();
        let [code_mode, session_tools, total, server] = &section.rows[..] else { panic!("{section:?}") };
        for own in [code_mode, session_tools] {
            assert!(own.targets[0].is_met && own.value > 100.0, "{own:?}");
        }
        assert_eq!((total.label.as_str(), server.label.as_str()), ("all 1 given servers, 2 tools", "s, 2 tools"));
        assert!((total.value - server.value).abs() < 1e-9 && total.ratio.is_some());
    }

    #[test]
    fn only_visible_fields_are_counted_with_the_tokens_of_the_encoding() {
        let encoding = tiktoken::get_encoding(ENCODING).unwrap();
        assert_eq!(encoding.encode("hello world"), [24912, 2375]);
        let tool = serde_json::json!({"x": 1, "inputSchema": {}, "name": "a", "title": "T"});
        assert_eq!(visible_json(&tool), r#"{"name":"a","inputSchema":{}}"#);
    }
}
