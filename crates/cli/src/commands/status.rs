//! `ringfence status`: how the supervised endpoints of this user stand.

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use ringfence_runtime::supervision::{Reason, Status};
use serde_json::json;

use super::config::load;
use super::session::{print, print_json, table};
use crate::failure::Failure;
use crate::state::Servers;

/// More than any status is long.
const MOST_BYTES: u64 = 64 << 10;

const PATIENCE: Duration = Duration::from_secs(5);

/// Show the endpoints that `ringfence up` keeps.
///
/// All supervisors of this user are asked, over their sockets in the state directory.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let found = supervisors()?;
    if arguments.json {
        return print_json(&json!(found));
    }
    if found.is_empty() {
        return print("no supervisor runs\n");
    }
    let titles = ["ENDPOINT", "HEALTH", "RESTARTS", "LAST REASON", "UP", "WORKER", "SUPERVISOR"];
    let mut rows = vec![titles.map(String::from).to_vec()];
    rows.extend(found.into_iter().map(row));
    print(&table(&rows))
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
        span(status.uptime_s),
        status.worker_pid.map_or("-".into(), |pid| pid.to_string()),
        status.pid.to_string(),
    ]
}

fn supervisors() -> Result<Vec<Status>, Failure> {
    let state = load(None, Vec::new())?.state_directory()?;
    let failed = |error: std::io::Error| {
        Failure::new(format!("the state directory {} cannot be read", state.display())).because(&error)
    };
    let connected = match Servers::open_for_supervisors(&state) {
        Ok(servers) => servers.connect_all().map_err(failed)?,
        // None has ever run.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(failed(error)),
    };
    // One that ends just now is none.
    Ok(connected.into_iter().filter_map(|(_, stream)| ask(stream)).collect())
}

fn ask(stream: UnixStream) -> Option<Status> {
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut text = Vec::new();
    stream.take(MOST_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// A time as a person says it.
fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        more => format!("{}d", more / 86_400),
    }
}
