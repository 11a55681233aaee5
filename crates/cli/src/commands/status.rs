//! `ringfence status`: how the supervised endpoints of this user stand.

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use ringfence_supervisor::{Reason, Status};
use serde::Serialize;
use serde_json::json;

use super::config::load;
use super::session::{print, print_json, table};
use crate::damage;
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
    /// The configuration file that they were started with, if it says where the state directory is
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// What came of asking one.
#[derive(Serialize)]
#[serde(untagged)]
enum Found {
    Told(Status),
    Silent { pid: u32, error: &'static str },
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let found = supervisors(arguments.config.clone())?;
    if arguments.json {
        return print_json(&json!(found));
    }
    if found.is_empty() {
        return print("no supervisor runs\n");
    }
    let titles = ["ENDPOINT", "HEALTH", "RESTARTS", "LAST REASON", "UP", "WORKER", "SUPERVISOR"];
    let (mut rows, mut silent) = (vec![titles.map(String::from).to_vec()], Vec::new());
    for found in found {
        match found {
            Found::Told(status) => rows.push(row(status)),
            Found::Silent { pid, .. } => silent.push(format!("pid {pid} does not answer\n")),
        }
    }
    let told = if rows.len() > 1 { table(&rows) } else { String::new() };
    print(&(told + &silent.concat()))
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

fn supervisors(config: Option<PathBuf>) -> Result<Vec<Found>, Failure> {
    let state = load(config, Vec::new())?.state_directory()?;
    let failed = |error: std::io::Error| {
        Failure::new(format!("the state directory {} cannot be read", state.display())).because(&error)
    };
    let tried = match Servers::open_for_supervisors(&state) {
        Ok(servers) => servers.try_all().map_err(failed)?,
        // None has ever run.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(failed(error)),
    };
    if tried.is_empty() {
        damage::check(&state)?;
    }
    damage::show_reports(&state);
    let asked = tried.into_iter().filter_map(|(pid, connected)| match connected.and_then(ask) {
        Ok(status) => status.map(Found::Told),
        Err(_) => Some(Found::Silent { pid, error: "it does not answer" }),
    });
    Ok(asked.collect())
}

/// One that ends just now says nothing, and is none.
fn ask(stream: UnixStream) -> std::io::Result<Option<Status>> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = Vec::new();
    stream.take(MOST_BYTES).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text).ok())
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
