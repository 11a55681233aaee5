//! `ringfence status`: the endpoints of this user's supervisors.

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use ringfence_supervisor::{Reason, Status};
use serde::Serialize;
use serde_json::json;

use crate::configuration::load;
use crate::database;
use crate::failure::Failure;
use crate::output::{print, print_json, status};
use crate::socket_directory::{Owners, SocketDirectory};
use crate::table::{header, table};

/// Maximum size of a status.
const MAX_STATUS_BYTES: u64 = 64 << 10;

const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Show the endpoints that `ringfence up` serves.
///
/// Queries all supervisors of this user over their sockets in the state directory.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The configuration file of the supervisors, if it sets the state directory
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// The result of querying one supervisor.
#[derive(Serialize)]
#[serde(untagged)]
enum Queried {
    Status(Status),
    Unresponsive { pid: u32, error: &'static str },
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let found = supervisors(arguments.config.clone())?;
    if arguments.json {
        return print_json(&json!(found));
    }
    if found.is_empty() {
        status("no supervisors");
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = vec![header(["ENDPOINT", "HEALTH", "RESTARTS", "LAST REASON", "UPTIME", "WORKER", "SUPERVISOR"])];
    let mut unresponsive = Vec::new();
    for queried in found {
        match queried {
            Queried::Status(status) => rows.push(row(status)),
            Queried::Unresponsive { pid, .. } => unresponsive.push(format!("supervisor {pid} does not respond\n")),
        }
    }
    let responsive = if rows.len() > 1 { table(&rows) } else { String::new() };
    print(&(responsive + &unresponsive.concat()))
}

fn row(status: Status) -> Vec<String> {
    let reason = status.last_reason.map_or("-", |reason| match reason {
        Reason::Exited => "exited",
        Reason::ProbeFailed => "probe failed",
    });
    vec![
        status.endpoint,
        json!(status.health).as_str().unwrap_or_default().to_owned(),
        status.restarts.to_string(),
        reason.to_owned(),
        duration(status.uptime_s),
        status.worker_pid.map_or("-".into(), |pid| pid.to_string()),
        status.pid.to_string(),
    ]
}

fn supervisors(config: Option<PathBuf>) -> Result<Vec<Queried>, Failure> {
    let state = load(config, Vec::new())?.state_directory()?;
    let failed = |error: std::io::Error| {
        Failure::new(format!("cannot read the state directory {}", state.display())).caused_by(&error)
    };
    let attempts = match SocketDirectory::open(&state, Owners::Supervisors) {
        Ok(supervisors) => supervisors.try_connect_all().map_err(failed)?,
        // No supervisor has ever run.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(failed(error)),
    };
    if attempts.is_empty() {
        database::check(&state)?;
    }
    database::show_reports(&state);
    let queried = attempts.into_iter().filter_map(|(pid, connected)| match connected.and_then(read_status) {
        Ok(status) => status.map(Queried::Status),
        Err(_) => Some(Queried::Unresponsive { pid, error: "the supervisor does not respond" }),
    });
    Ok(queried.collect())
}

/// Returns `None` for a supervisor that has just ended.
fn read_status(stream: UnixStream) -> std::io::Result<Option<Status>> {
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    let mut text = Vec::new();
    stream.take(MAX_STATUS_BYTES).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text).ok())
}

/// Formats a duration with its largest unit.
fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        more => format!("{}d", more / 86_400),
    }
}
