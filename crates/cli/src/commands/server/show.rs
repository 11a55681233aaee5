//! `ringfence server show NAME`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ringfence_entries::{entry_to_json, required_variables};
use serde_json::Value;

use super::list::known;
use super::registry::Registry;
use crate::commands::session::{print, print_json, table, word};
use crate::failure::{Failure, notice};
use crate::operator;

/// Show all that is known of a server.
///
/// Values of variables and headers are not shown unless --reveal is given; references such as ${TOKEN} are.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The server's name
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
    let Some(listed) = listing.find(&arguments.name) else { return Err(registry.missing(&arguments.name)) };
    let mut server = known(listed, &operator::hosted()?);
    if arguments.reveal {
        server["entry"] = entry_to_json(&listed.entry);
    }
    let needed = required_variables(&listed.entry);
    if !needed.is_empty() {
        server["variables"] = needed.into();
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

/// A row for each value. Long lists have commands of their own.
fn flatten(name: &str, value: &Value, rows: &mut Vec<Vec<String>>) {
    match value {
        Value::Object(fields) => {
            for (part, value) in fields.iter().filter(|(part, _)| !matches!(part.as_str(), "stderr" | "tools")) {
                let full = if name.is_empty() { part.clone() } else { format!("{name}.{part}") };
                flatten(&full, value, rows);
            }
        }
        Value::Array(items) if items.iter().all(Value::is_string) => {
            let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            rows.push(vec![name.to_owned(), items.join(" ")]);
        }
        value => rows.push(vec![name.to_owned(), word(value)]),
    }
}
