//! `ringfence session logs ID`.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use crate::failure::Failure;
use crate::operator_client::find_session;
use crate::output::{print, print_json, status};
use crate::table::{ago, cell, header, table};

/// Show the last calls of a session.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The id of the session, or a unique prefix of it
    id: String,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let calls = find_session(&arguments.id)?.request("GET", "/log", None)?["calls"].take();
    if arguments.json {
        return print_json(&calls);
    }
    let mut rows = vec![header(["TIME", "KIND", "STATUS", "EXIT CODE", "MS", "CONTENT"])];
    rows.extend(calls.as_array().into_iter().flatten().map(row));
    if rows.len() == 1 {
        status("no calls");
        return Ok(ExitCode::SUCCESS);
    }
    print(&table(&rows))
}

fn row(call: &Value) -> Vec<String> {
    let mut row = vec![ago(&call["time"])];
    row.extend(["kind", "status", "exit_code", "duration_ms", "what"].map(|name| cell(&call[name])));
    row
}
