//! `ringfence server search QUERY`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ringfence_gateway::{Hit, KnownServers, stored_servers};
use serde_json::{Value, json};

use super::registry::Registry;
use crate::exit_code::INCOMPLETE;
use crate::failure::Failure;
use crate::output::{notice, print, print_json, status, visible};
use crate::table::shorten;

/// Maximum length of a description in the list.
const MAX_DESCRIPTION_CHARS: usize = 120;

/// Search the tools of all servers by a description.
///
/// No server is started: the search uses the tools that enabled servers offered when they were last connected. Tools that
/// are withheld because they have changed are left out.
#[derive(Args)]
pub(crate) struct Arguments {
    /// A description of what the tool should do
    #[arg(required = true)]
    query: Vec<String>,
    /// Maximum number of tools to show
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    /// Print JSON instead of text, with the schemas
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments, config: Option<&PathBuf>) -> Result<ExitCode, Failure> {
    let registry = Registry::open(config)?;
    let shown = show(arguments, &registry)?;
    let is_incomplete = !registry.damage_reports.is_empty();
    Ok(if is_incomplete { ExitCode::from(INCOMPLETE) } else { shown })
}

fn show(arguments: &Arguments, registry: &Registry) -> Result<ExitCode, Failure> {
    let known = registry.wait(stored_servers(&registry.store, &registry.listing().entries()))?;
    let hits = known.search(&arguments.query.join(" "), arguments.limit.into());
    if arguments.json {
        let tools: Vec<Value> = hits.iter().map(|hit| details(&known, *hit)).collect();
        return print_json(&json!({"tools": tools}));
    }
    let unknown: Vec<&str> = known
        .servers()
        .iter()
        .filter(|server| server.status != "disabled" && server.tools.is_empty())
        .map(|server| server.name.as_str())
        .collect();
    if !unknown.is_empty() {
        notice(&format!("the tools of {} are unknown until the server has been connected once", unknown.join(", ")));
    }
    if hits.is_empty() {
        status("no tools found");
        return Ok(ExitCode::SUCCESS);
    }
    print(&hits.iter().map(|hit| line(&known, *hit)).collect::<String>())
}

fn line(known: &KnownServers, hit: Hit) -> String {
    let server = &known.servers()[hit.server];
    let tool = &server.tools[hit.tool];
    let description = tool["description"].as_str().unwrap_or_default();
    let summary = description.lines().map(str::trim).find(|line| !line.is_empty());
    let summary = summary.map(|line| format!(" — {}", shorten(line, MAX_DESCRIPTION_CHARS))).unwrap_or_default();
    let name = tool["name"].as_str().unwrap_or_default();
    format!("{}\n", visible(&format!("{}.{name}{summary}", server.name)))
}

fn details(known: &KnownServers, hit: Hit) -> Value {
    let server = &known.servers()[hit.server];
    let tool = &server.tools[hit.tool];
    json!({
        "server": server.name,
        "server_alias": server.alias,
        "tool": tool["name"],
        "alias": server.tool_aliases[hit.tool],
        "description": tool["description"],
        "score": (hit.score * 1000.0).round() / 1000.0,
        "inputSchema": tool["inputSchema"],
    })
}
