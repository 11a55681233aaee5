//! `ringfence server list`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ringfence_entries::{Transport, entry_to_redacted_json, redact_url};
use ringfence_servers::Listed;
use ringfence_store::DamageReport;
use serde_json::{Value, json};

use super::registry::Registry;
use crate::commands::session::{print, print_json, table, word};
use crate::damage::INCOMPLETE;
use crate::failure::{Failure, notice};
use crate::operator;

/// List all servers, from all places, with what a server that runs says of them.
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
    let hosted = operator::hosted()?;
    let code = if damage.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) };
    if arguments.json {
        let servers: Vec<Value> = listing.servers.iter().map(|listed| known(listed, &hosted)).collect();
        let problems: Vec<String> = listing.problems.iter().map(ToString::to_string).chain(damage).collect();
        print_json(&json!({"servers": servers, "problems": problems}))?;
        return Ok(code);
    }
    for problem in &listing.problems {
        notice(&problem.to_string());
    }
    if listing.servers.is_empty() {
        // After the loss of a database, an empty list may be wrong.
        print(if damage.is_empty() { "no servers\n" } else { "" })?;
        return Ok(code);
    }
    let mut rows = vec![["NAME", "MODE", "STATUS", "TOOLS", "WHAT", "FROM"].map(String::from).to_vec()];
    rows.extend(listing.servers.iter().map(|listed| row(listed, &hosted)));
    print(&table(&rows))?;
    Ok(code)
}

fn row(listed: &Listed, hosted: &[(u32, Value)]) -> Vec<String> {
    let known = known(listed, hosted);
    let what = match &listed.entry.transport {
        Transport::Stdio(stdio) => {
            let words: Vec<&str> = std::iter::once(&stdio.command).chain(&stdio.args).map(String::as_str).collect();
            shorten(&words.join(" "))
        }
        Transport::Http(remote) | Transport::Sse(remote) | Transport::Websocket(remote) | Transport::Remote(remote) => {
            shorten(&redact_url(&remote.url))
        }
    };
    let cell = |key: &str| word(&known[key]);
    vec![cell("name"), cell("mode"), cell("status"), cell("tool_count"), what, listed.origin.to_string()]
}

fn shorten(text: &str) -> String {
    const MOST: usize = 60;
    if text.chars().count() <= MOST { text.into() } else { text.chars().take(MOST - 1).chain(['…']).collect() }
}

/// The entry, and over it what the server that hosts it says. Without one it is only known whether it is to run.
pub(super) fn known(listed: &Listed, hosted: &[(u32, Value)]) -> Value {
    let entry = &listed.entry;
    let status = if entry.enable { "not running" } else { "disabled" };
    let mut known = json!({
        "name": entry.name,
        "uuid": entry.uuid,
        "enable": entry.enable,
        "mode": entry.transport.mode(),
        "origin": listed.origin.to_string(),
        "entry": entry_to_redacted_json(entry),
        "status": status,
    });
    let of_this = |(_, info): &&(u32, Value)| info["name"] == entry.name.as_str();
    if let (Some((server, Value::Object(info))), Value::Object(known)) = (hosted.iter().find(of_this), &mut known) {
        let new = info.iter().filter(|(key, _)| !matches!(key.as_str(), "name" | "uuid" | "enable" | "mode" | "entry"));
        known.extend(new.map(|(key, value)| (key.clone(), value.clone())));
        known.insert("server".into(), (*server).into());
    }
    known
}
