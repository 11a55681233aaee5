//! `ringfence server tools NAME`.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use crate::commands::session::{print, print_json, table, word};
use crate::failure::Failure;
use crate::operator;

/// List the tools of a server that runs.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The server's name
    name: String,
    /// Print JSON instead of text, with the schemas
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let tools = operator::ask_hosted(&arguments.name, "GET", "/tools", None)?["tools"].take();
    if arguments.json {
        return print_json(&tools);
    }
    let tools = tools.as_array().cloned().unwrap_or_default();
    if tools.is_empty() {
        return print("no tools\n");
    }
    let mut rows = vec![["TOOL", "OFFERED", "DESCRIPTION"].map(String::from).to_vec()];
    rows.extend(tools.iter().map(row));
    print(&table(&rows))
}

fn row(tool: &Value) -> Vec<String> {
    let held = tool["held"].as_bool().unwrap_or_default();
    let description = tool["description"].as_str().unwrap_or_default();
    // The first sentence or line says what it is for; the rest is for models.
    let first = description.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    let first = first.split_once(". ").map_or(first, |(sentence, _)| sentence);
    let first: String = first.chars().take(100).collect();
    vec![word(&tool["name"]), if held { "held: changed since it was accepted" } else { "yes" }.into(), first]
}
