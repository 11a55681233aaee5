//! Requests from a session to an allowed host, compared with the same requests of a process of the host.
//!
//! The session connects to the address that its resolver returns, as programs do that know no proxy. The host is a web
//! server of this program, at the name of this host. Both clients are the same Python code, and time themselves.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::Setup;
use crate::child::KillOnDrop;
use crate::client::Client;
use crate::peers::web;
use crate::report::{Bound, Figure, Row, Section};
use crate::sampling::{Candidate, sample_in_turns};
use crate::server::Server;

const CLIENT: &str = include_str!("egress_client.py");

/// Requests in one sample of `kept_request`.
const KEPT_REQUESTS: u32 = 10;

pub(super) fn measure(setup: &Setup) -> Result<Section> {
    let python = setup.python()?;
    let (name, address) = own_name()?;
    let address = web::start(address)?;
    let port = address.port();
    let server = setup.start_server(&format!("[sessions]\nallow = [\"{name}:{port}+private\"]\n"))?;
    let mut session = SessionClient::start(&server, &format!("NAME, PORT, ADDRESS = {name:?}, {port}, None"))?;
    let mut direct =
        DirectClient::start(python, &format!("NAME, PORT, ADDRESS = {name:?}, {port}, \"{}\"", address.ip()))?;
    let mut section = Section::default();
    let mut sample = |what: &str, call: &str, samples: usize| {
        let mut candidates = [
            Candidate::new(format!("ringfence, {what}"), || session.time(call)),
            Candidate::new(format!("direct, {what}"), || direct.time(call)),
        ];
        sample_in_turns(&mut candidates, samples);
        let measured = Section::of_candidates(candidates.into());
        section.not_measured.extend(measured.not_measured);
        <[Row; 2]>::try_from(measured.rows).ok()
    };
    let mut rows = Vec::new();
    let requests = [
        (format!("kept_request({KEPT_REQUESTS})"), "request on a kept connection", 1.0),
        ("first_connection()".into(), "lookup, connection and request", 5.0),
    ];
    for (call, what, limit) in requests {
        let Some([ours, direct]) = sample(what, &call, setup.workload.calls / 10) else { continue };
        let added = Row::single(format!("{what}: added"), "ms", ours.value - direct.value);
        rows.extend([ours.compared_with(Some(&direct)), direct, added.target(Figure::Value, Bound::AtMost, limit)]);
    }
    let bytes = setup.workload.transfer_bytes;
    let what = format!("download of {} MiB", bytes >> 20);
    if let Some(times) = sample(&what, &format!("transfer({bytes})"), setup.workload.transfers) {
        let [ours, direct] = times.map(|row| rates(bytes, row));
        rows.extend([ours.compared_with(Some(&direct)).target(Figure::Ratio, Bound::AtLeast, 0.8), direct]);
    }
    section.rows = rows;
    Ok(section)
}

/// Returns the name of this host and an address of it. Other names of loopback, such as `localhost`, are those of the
/// sandbox itself in a sandbox.
fn own_name() -> Result<(String, IpAddr)> {
    let name = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
    let addresses = (name.as_str(), 0).to_socket_addrs();
    let address = addresses.ok().and_then(|mut found| found.find(SocketAddr::is_ipv4)).map(|found| found.ip());
    let address = address.with_context(|| format!("this host has no address for its own name {name:?}"))?;
    Ok((name, address))
}

/// Converts times in milliseconds to rates.
fn rates(bytes: u32, times: Row) -> Row {
    let rate = |milliseconds: f64| f64::from(bytes) / 1e3 / milliseconds;
    Row::of_few_samples(times.label, "MB/s", times.samples.into_iter().map(rate).collect())
}

fn parse_seconds(text: &str) -> Result<Duration> {
    let seconds: f64 = text.trim().parse().with_context(|| format!("the client printed {text:?}"))?;
    Ok(Duration::try_from_secs_f64(seconds)?)
}

/// The client in a session.
struct SessionClient {
    client: Client,
    session_id: String,
}

impl SessionClient {
    fn start(server: &Server, variables: &str) -> Result<Self> {
        let mut client = server.connect()?;
        let code = format!("{variables}\n{CLIENT}");
        let session_id = client.create_session("python", &code)?.session_id()?;
        Ok(Self { client, session_id })
    }

    fn time(&mut self, call: &str) -> Result<Duration> {
        let arguments = json!({"session_id": self.session_id, "code": format!("print({call})")});
        let result = self.client.call("execute_code", &arguments)?.result;
        parse_seconds(result["structuredContent"]["stdout"].as_str().unwrap_or_default())
            .with_context(|| result["structuredContent"]["error"].to_string())
    }
}

/// The client as a process of the host.
struct DirectClient {
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    _process: KillOnDrop,
}

impl DirectClient {
    fn start(python: &Path, variables: &str) -> Result<Self> {
        let code =
            format!("{variables}\n{CLIENT}\nimport sys\nfor line in sys.stdin:\n    print(eval(line), flush=True)");
        let mut command = Command::new(python);
        let mut process = command.args(["-I", "-c", &code]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = process.stdin.take().context("python3 has no standard input")?;
        let stdout = process.stdout.take().context("python3 has no standard output")?;
        Ok(Self { stdin, stdout: BufReader::new(stdout), _process: KillOnDrop(process) })
    }

    fn time(&mut self, call: &str) -> Result<Duration> {
        writeln!(self.stdin, "{call}")?;
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        parse_seconds(&line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_megabytes_per_second() {
        let row = Row::of_samples("a", "ms", vec![1000.0, 500.0, 250.0]);
        let rates = rates(2_000_000, row);
        assert_eq!((rates.samples.as_slice(), rates.value, rates.unit), (&[2.0, 4.0, 8.0][..], 4.0, "MB/s"));
    }
}
