//! `ringfence doctor`: every protection, present or missing, with its remedy; then a real sandbox.

mod host;
mod self_test;
mod state;

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use crate::failure::Failure;

/// Check every protection of this host, start a sandbox, and try to get out of it.
///
/// Exits with 0 when the default configuration can run here, and 1 when it cannot.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// How it stands with a protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    /// Something less strong stands in; the default configuration accepts it.
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
struct Findings {
    /// Whether the default configuration can run.
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
    let findings = Findings { can_run, checks, self_test };
    let text = if arguments.json {
        let json = serde_json::to_string_pretty(&findings);
        json.map_err(|error| Failure::new("the findings cannot be shown as JSON").because(&error))? + "\n"
    } else {
        findings.to_text()
    };
    let shown = anstream::stdout().write_all(text.as_bytes());
    shown.map_err(|error| Failure::new("the findings cannot be shown").because(&error))?;
    Ok(ExitCode::from(u8::from(!can_run)))
}

impl Findings {
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
            // Neighbours with one remedy share one hint.
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
            "\nThe default configuration cannot run on this host: see what is missing above.\n"
        };
        text
    }
}
