//! `ringfence doctor`: checks the protections of this host, each with a remedy if it is missing, then starts a sandbox and
//! tries to escape from it.

pub(crate) mod escape;
mod host;
mod self_test;
mod state;

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use crate::failure::Failure;
use crate::output::print;

/// Check the protections of this host, start a sandbox, and try to escape from it.
///
/// Exits with 0 if the default configuration can run on this host, otherwise with 1.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// The state of a protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    /// A weaker protection replaces it. The default configuration accepts that.
    Weaker,
    Missing,
}

#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Check {
    fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, state: State::Ok, detail: detail.into(), remedy: None }
    }

    fn lacking(name: &'static str, state: State, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, state, detail: detail.into(), remedy: Some(remedy.into()) }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    /// True if the default configuration can run on this host.
    can_run: bool,
    checks: Vec<Check>,
    self_test: self_test::Outcome,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut checks = host::checks();
    let self_test = self_test::run();
    // After the self-test: the store starts a thread, and only a single-threaded process can start a sandbox.
    checks.push(state::check());
    let can_run = self_test.passed() && checks.iter().all(|check| check.state != State::Missing);
    let report = Report { can_run, checks, self_test };
    let text = if arguments.json {
        let json = serde_json::to_string_pretty(&report);
        json.map_err(|error| Failure::new("cannot format the report as JSON").caused_by(&error))? + "\n"
    } else {
        report.to_text()
    };
    print(&text)?;
    Ok(ExitCode::from(u8::from(!can_run)))
}

impl Report {
    fn to_text(&self) -> String {
        let mut text = String::new();
        let mut last_remedy = None;
        for check in &self.checks {
            let state = match check.state {
                State::Ok => "ok",
                State::Weaker => "weaker",
                State::Missing => "MISSING",
            };
            let _ = writeln!(text, "{state:8} {:22} {}", check.name, check.detail);
            // Consecutive checks with the same remedy share one hint.
            if let Some(remedy) = &check.remedy
                && last_remedy.replace(remedy) != Some(remedy)
            {
                let _ = writeln!(text, "{:8} {:22} hint: {remedy}", "", "");
            }
        }
        self.self_test.write_text(&mut text);
        text += if self.can_run {
            "\nThe default configuration can run on this host.\n"
        } else {
            "\nThe default configuration cannot run on this host: see the missing protections above.\n"
        };
        text
    }
}
