//! Installation of small packages in new sessions, with a filled cache, compared with the package managers of the host.
//!
//! The mirror is filled from the registries of this host by the samples that are not counted, into a temporary directory.

mod data;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;

use super::Setup;
use crate::client::Client;
use crate::programs::find_on_path;
use crate::report::{Bound, Figure, Row, Section};
use crate::sampling::{Candidate, sample_in_turns};

const PIP: &str = "ringfence, pip install requests";
const PIP_PANDAS: &str = "ringfence, pip install pandas";
const NPM: &str = "ringfence, npm install left-pad";
const HOST_PIP: &str = "pip of the host";
const HOST_NPM: &str = "npm of the host";

pub(super) fn measure(setup: &Setup) -> Result<Section> {
    let server = setup.start_server("")?;
    let directory = tempfile::tempdir().context("cannot create a temporary directory")?;
    let (mut python, mut pandas, mut node) = (server.connect()?, server.connect()?, server.connect()?);
    let mut candidates = vec![
        Candidate::new(PIP, || install(&mut python, "python", "pip install requests", "import requests; print(1)")),
        Candidate::new(HOST_PIP, || pip_of_the_host(setup, directory.path())),
    ];
    if setup.workload.installs_data {
        let code = "import pandas; print(1)";
        candidates.push(Candidate::new(PIP_PANDAS, || install(&mut pandas, "python", "pip install pandas", code)));
    }
    if setup.host.node.is_some() {
        let code = "await import('left-pad'); console.log(1)";
        candidates.push(Candidate::new(NPM, move || install(&mut node, "node", "npm install left-pad", code)));
        candidates.push(Candidate::new(HOST_NPM, || npm_of_the_host(directory.path())));
    }
    sample_in_turns(&mut candidates, setup.workload.installations);
    let mut section = Section::of_candidates(candidates);
    section.rows = compare(section.rows);
    if setup.workload.installs_data {
        match data::measure(setup, &server) {
            Ok(measured) => section.extend(measured),
            Err(error) => section.not_measured.push(format!("the template `data`: {error:#}")),
        }
    } else {
        let note = "the template `data`: its large packages are not installed with --quick";
        section.not_measured.push(note.to_owned());
    }
    Ok(section)
}

/// Returns the time of the installation in a new session.
fn install(client: &mut Client, template: &str, command: &str, code: &str) -> Result<Duration> {
    let id = client.create_session(template, if template == "node" { "1" } else { "pass" })?.session_id()?;
    let result = client.call_without_stream("execute_command", &json!({"session_id": id, "command": command}))?;
    let content = &result.result["structuredContent"];
    ensure!(content["exit_code"] == 0, "{command}: {} {}", content["stdout"], content["stderr"]);
    let used = client.call("execute_code", &json!({"session_id": id, "code": code}))?;
    ensure!(used.result["structuredContent"]["stdout"] == "1\n", "{code}: {}", used.result["structuredContent"]);
    client.stop_session(&id)?;
    Ok(result.time)
}

/// Returns the time of an installation into an empty directory, with a cache in `directory`.
fn pip_of_the_host(setup: &Setup, directory: &Path) -> Result<Duration> {
    let target = tempfile::tempdir()?;
    let mut command = Command::new(setup.python()?);
    command.args(["-m", "pip", "install", "--quiet", "requests", "--target"]).arg(target.path());
    time(command.arg("--cache-dir").arg(directory.join("pip")))
}

fn npm_of_the_host(directory: &Path) -> Result<Duration> {
    let target = tempfile::tempdir()?;
    let mut command = Command::new(find_on_path("npm").context("npm is not installed")?);
    command.args(["install", "left-pad", "--no-audit", "--no-fund", "--no-update-notifier", "--cache"]);
    time(command.arg(directory.join("npm")).arg("--prefix").arg(target.path()))
}

fn time(command: &mut Command) -> Result<Duration> {
    let start = Instant::now();
    let output = command.stdin(Stdio::null()).output()?;
    let time = start.elapsed();
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("it failed").to_owned());
    }
    Ok(time)
}

fn compare(rows: Vec<Row>) -> Vec<Row> {
    let references: Vec<Row> = rows.iter().map(|row| Row::single(&row.label, row.unit, row.value)).collect();
    let find = |label: &str| references.iter().find(|row| row.label == label);
    let compared = rows.into_iter().map(|row| match row.label.as_str() {
        PIP => row.compared_with(find(HOST_PIP)).target(Figure::Value, Bound::AtMost, 600.0),
        PIP_PANDAS => row.target(Figure::Value, Bound::AtMost, 500.0),
        NPM => row.compared_with(find(HOST_NPM)),
        _ => row,
    });
    compared.collect()
}
