//! `ringfence session list`.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use crate::exit_code::INCOMPLETE;
use crate::failure::Failure;
use crate::operator_client;
use crate::output::{print, print_json, status};
use crate::table::{ago, cell, header, table};

/// List the sessions of all servers.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let sessions = operator_client::sessions()?;
    // A report means that the state database was restored. Servers cannot adopt sessions that are missing from it, so
    // the list may be incomplete.
    let is_incomplete = !operator_client::damage_reports()?.is_empty();
    let shown = show(arguments, sessions)?;
    Ok(if is_incomplete { ExitCode::from(INCOMPLETE) } else { shown })
}

fn show(arguments: &Arguments, sessions: Vec<(u32, Value)>) -> Result<ExitCode, Failure> {
    if arguments.json {
        let with_server = |(server, mut session): (u32, Value)| {
            session["server"] = server.into();
            session
        };
        return print_json(&sessions.into_iter().map(with_server).collect());
    }
    if sessions.is_empty() {
        status("no sessions");
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = vec![header(["ID", "TEMPLATE", "FLAVOR", "STATUS", "PRINCIPAL", "LAST USED", "SERVER"])];
    rows.extend(sessions.iter().map(|(server, session)| {
        let mut row: Vec<String> =
            ["session_id", "template", "flavor", "status", "principal"].map(|name| cell(&session[name])).to_vec();
        row.extend([ago(&session["last_used"]), server.to_string()]);
        row
    }));
    print(&table(&rows))
}
