//! `ringfence session show ID`.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use crate::failure::Failure;
use crate::operator_client::find_session;
use crate::output::{print, print_json};
use crate::table::{cell, table};

/// Show the details of a session.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The id of the session, or a unique prefix of it
    id: String,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let found = find_session(&arguments.id)?;
    let mut session = found.request("GET", "", None)?;
    session["server"] = found.server.into();
    session["processes"] = found.request("GET", "/processes", None)?["processes"].take();
    if arguments.json {
        return print_json(&session);
    }
    let processes = session["processes"].as_array().map_or(0, Vec::len);
    session["processes"] = processes.into();
    let rows: Vec<Vec<String>> =
        session.as_object().into_iter().flatten().flat_map(|(name, value)| rows_of(name, value)).collect();
    print(&table(&rows))
}

/// Returns a row for a value, or one for each field of an object.
fn rows_of(name: &str, value: &Value) -> Vec<Vec<String>> {
    match value {
        Value::Object(fields) => {
            fields.iter().map(|(field, value)| vec![format!("{name}.{field}"), cell(value)]).collect()
        }
        value => vec![vec![name.to_owned(), cell(value)]],
    }
}
