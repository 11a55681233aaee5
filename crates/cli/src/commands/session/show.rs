//! `ringfence session show ID`.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::{print, print_json, table, word};
use crate::failure::Failure;
use crate::operator;

/// Show all that is known of a session.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The session's id, or how it begins
    id: String,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let found = operator::find(&arguments.id)?;
    let mut session = found.ask("GET", "", None)?;
    session["server"] = found.server.into();
    session["processes"] = found.ask("GET", "/processes", None)?["processes"].take();
    if arguments.json {
        return print_json(&session);
    }
    let processes = session["processes"].as_array().map_or(0, Vec::len);
    session["processes"] = processes.into();
    let rows: Vec<Vec<String>> =
        session.as_object().into_iter().flatten().flat_map(|(name, value)| lines(name, value)).collect();
    print(&table(&rows))
}

fn lines(name: &str, value: &Value) -> Vec<Vec<String>> {
    match value {
        Value::Object(fields) => {
            fields.iter().map(|(part, value)| vec![format!("{name}.{part}"), word(value)]).collect()
        }
        value => vec![vec![name.to_owned(), word(value)]],
    }
}
