//! `ringfence session logs ID`.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::{ago, print, print_json, table, word};
use crate::failure::Failure;
use crate::operator;

/// Show the last calls of a session.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The session's id, or how it begins
    id: String,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let calls = operator::find(&arguments.id)?.ask("GET", "/log", None)?["calls"].take();
    if arguments.json {
        return print_json(&calls);
    }
    let mut rows = vec![["TIME", "KIND", "STATUS", "CODE", "MS", "WHAT"].map(String::from).to_vec()];
    rows.extend(calls.as_array().into_iter().flatten().map(row));
    print(&if rows.len() > 1 { table(&rows) } else { "no calls\n".into() })
}

fn row(call: &Value) -> Vec<String> {
    let mut row = vec![ago(&call["time"])];
    row.extend(["kind", "status", "exit_code", "duration_ms", "what"].map(|name| word(&call[name])));
    row
}
