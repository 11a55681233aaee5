//! `ringfence server show NAME`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ringfence_entries::{entry_to_json, required_variables};
use serde_json::Value;

use super::list::describe;
use super::registry::Registry;
use crate::failure::Failure;
use crate::operator_client::hosted_servers;
use crate::output::{notice, print, print_json};
use crate::table::{cell, table};

/// Show the details of a server.
///
/// Values of variables and headers are hidden unless --reveal is given; references such as ${TOKEN} are always shown.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The name of the server
    name: String,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    /// Show the values of variables and headers
    #[arg(long)]
    reveal: bool,
}

pub(super) fn run(arguments: &Arguments, config: Option<&PathBuf>) -> Result<ExitCode, Failure> {
    let registry = Registry::open(config)?;
    let listing = registry.listing();
    let Some(listed) = listing.find(&arguments.name) else { return Err(registry.not_in_store(&arguments.name)) };
    let mut server = describe(listed, &hosted_servers()?);
    if arguments.reveal {
        server["entry"] = entry_to_json(&listed.entry);
    }
    let variables = required_variables(&listed.entry);
    if !variables.is_empty() {
        server["variables"] = variables.into();
    }
    for problem in listing.problems.iter().filter(|problem| problem.server.as_ref() == Some(&arguments.name)) {
        notice(&problem.to_string());
    }
    if arguments.json {
        return print_json(&server);
    }
    let mut rows = Vec::new();
    flatten("", &server, &mut rows);
    print(&table(&rows))
}

/// Adds a row for each value. Long lists, which have separate commands, are left out.
fn flatten(name: &str, value: &Value, rows: &mut Vec<Vec<String>>) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields.iter().filter(|(field, _)| !matches!(field.as_str(), "stderr" | "tools")) {
                let full = if name.is_empty() { field.clone() } else { format!("{name}.{field}") };
                flatten(&full, value, rows);
            }
        }
        // One line each: they are sentences.
        Value::Array(items) if name == "blocked" => {
            rows.extend(items.iter().map(|item| vec![name.to_owned(), cell(item)]));
        }
        Value::Array(items) if items.iter().all(Value::is_string) => {
            let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            rows.push(vec![name.to_owned(), items.join(" ")]);
        }
        value => rows.push(vec![name.to_owned(), cell(value)]),
    }
}
