//! `ringfence server tools NAME`.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use crate::failure::Failure;
use crate::operator_client::request_hosted;
use crate::output::{print, print_json, status};
use crate::table::{cell, header, table};

/// List the tools of a running server.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The name of the server
    name: String,
    /// Print JSON instead of text, with the schemas
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let tools = request_hosted(&arguments.name, "GET", "/tools", None)?["tools"].take();
    if arguments.json {
        return print_json(&tools);
    }
    let tools = tools.as_array().cloned().unwrap_or_default();
    if tools.is_empty() {
        status("no tools");
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = vec![header(["TOOL", "OFFERED", "DESCRIPTION"])];
    rows.extend(tools.iter().map(row));
    print(&table(&rows))
}

fn row(tool: &Value) -> Vec<String> {
    let is_withheld = tool["held"].as_bool().unwrap_or_default();
    let description = tool["description"].as_str().unwrap_or_default();
    // The first sentence or line says what the tool is for; the rest is for models.
    let first = description.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    let first = first.split_once(". ").map_or(first, |(sentence, _)| sentence);
    let first: String = first.chars().take(100).collect();
    let offered = if is_withheld { "withheld: changed since it was accepted" } else { "yes" };
    vec![cell(&tool["name"]), offered.into(), first]
}
