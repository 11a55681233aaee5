//! `ringfence server list`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ringfence_entries::{Transport, entry_to_redacted_json, redact_url};
use ringfence_servers::ListedServer;
use ringfence_store::DamageReport;
use serde_json::{Value, json};

use super::registry::Registry;
use crate::exit_code::INCOMPLETE;
use crate::failure::Failure;
use crate::operator_client::hosted_servers;
use crate::output::{notice, print, print_json, status};
use crate::table::{cell, header, shorten, table};

/// Maximum length of a command or URL in the table.
const MAX_TARGET_CHARS: usize = 60;

/// List the servers of all sources, with their status in running ringfence servers.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments, config: Option<&PathBuf>) -> Result<ExitCode, Failure> {
    let registry = Registry::open(config)?;
    let listing = registry.listing();
    let damage: Vec<String> = registry.damage_reports.iter().map(DamageReport::message).collect();
    drop(registry);
    let hosted = hosted_servers()?;
    let code = if damage.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) };
    if arguments.json {
        let servers: Vec<Value> = listing.servers.iter().map(|listed| describe(listed, &hosted)).collect();
        let problems: Vec<String> = listing.problems.iter().map(ToString::to_string).chain(damage).collect();
        print_json(&json!({"servers": servers, "problems": problems}))?;
        return Ok(code);
    }
    for problem in &listing.problems {
        notice(&problem.to_string());
    }
    if listing.servers.is_empty() {
        // After the loss of a database, an empty list may be wrong.
        if damage.is_empty() {
            status("no servers");
        }
        return Ok(code);
    }
    let mut rows = vec![header(["NAME", "MODE", "STATUS", "TOOLS", "COMMAND OR URL", "SOURCE"])];
    rows.extend(listing.servers.iter().map(|listed| row(listed, &hosted)));
    print(&table(&rows))?;
    Ok(code)
}

fn row(listed: &ListedServer, hosted: &[(u32, Value)]) -> Vec<String> {
    let server = describe(listed, hosted);
    let target = match &listed.entry.transport {
        Transport::Stdio(stdio) => {
            let command: Vec<&str> = std::iter::once(&stdio.command).chain(&stdio.args).map(String::as_str).collect();
            shorten(&command.join(" "), MAX_TARGET_CHARS)
        }
        Transport::Http(remote) | Transport::Sse(remote) | Transport::Websocket(remote) | Transport::Remote(remote) => {
            shorten(&redact_url(&remote.url), MAX_TARGET_CHARS)
        }
    };
    let mut row = ["name", "mode", "status", "tool_count"].map(|key| cell(&server[key])).to_vec();
    row.extend([target, listed.origin.to_string()]);
    row
}

/// Returns the entry, with the fields of the running ringfence server that hosts it. If none does, the status says only
/// whether the entry is enabled.
pub(super) fn describe(listed: &ListedServer, hosted: &[(u32, Value)]) -> Value {
    let entry = &listed.entry;
    let status = if entry.enable { "not running" } else { "disabled" };
    let mut server = json!({
        "name": entry.name,
        "uuid": entry.uuid,
        "enable": entry.enable,
        "mode": entry.transport.mode(),
        "origin": listed.origin.to_string(),
        "entry": entry_to_redacted_json(entry),
        "status": status,
    });
    let has_name = |(_, info): &&(u32, Value)| info["name"] == entry.name.as_str();
    if let (Some((pid, Value::Object(info))), Value::Object(fields)) = (hosted.iter().find(has_name), &mut server) {
        let new = info.iter().filter(|(key, _)| !matches!(key.as_str(), "name" | "uuid" | "enable" | "mode" | "entry"));
        fields.extend(new.map(|(key, value)| (key.clone(), value.clone())));
        fields.insert("server".into(), (*pid).into());
    }
    server
}
