//! Requests from a session to an allowed host, compared with the same requests of a process of the host.
//!
//! The session connects to the address that its resolver returns, as programs do that know no proxy. The host is a web
//! server of this program, at the name of this host. Both clients are the same Python code, and time themselves. With
//! TLS, the rule limits the paths of the host, so the proxy decrypts the requests and checks them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;
use tempfile::NamedTempFile;

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
    let (name, address) = own_name()?;
    let mut plain = Clients::of_plain_host(setup, &name, address)?;
    let mut section = plain.measure_requests(setup, "");
    section.extend(plain.measure_transfer(setup));
    drop(plain);
    section.extend(Clients::of_tls_host(setup, &name, address)?.measure_requests(setup, " with TLS and checks"));
    Ok(section)
}

/// A client in a session and one on the host, of the same web server.
struct Clients {
    session: SessionClient,
    direct: DirectClient,
    _server: Server,
    /// The server reads this file again for each sandbox.
    _authority: Option<NamedTempFile>,
}

impl Clients {
    fn of_plain_host(setup: &Setup, name: &str, address: IpAddr) -> Result<Self> {
        let address = web::start(address)?;
        let rule = format!("\"{name}:{}+private\"", address.port());
        let server = setup.start_server(&format!("[sessions]\nallow = [{rule}]\n"))?;
        Self::start(setup, server, name, address, None)
    }

    fn of_tls_host(setup: &Setup, name: &str, address: IpAddr) -> Result<Self> {
        let web::TlsServer { address, authority_pem } = web::start_tls(address, name)?;
        let authority = NamedTempFile::new().context("cannot create a temporary file")?;
        std::fs::write(authority.path(), authority_pem)?;
        let rule = format!("{{ host = \"{name}:{}+private\", paths = [\"/*\"] }}", address.port());
        let configuration = format!("[sessions]\nallow = [{rule}]\n");
        let variables = [("SSL_CERT_FILE", authority.path())];
        let server = Server::prepare_with_variables(setup.ringfence()?, &configuration, &variables)?.start()?;
        Self::start(setup, server, name, address, Some(authority))
    }

    fn start(
        setup: &Setup,
        server: Server,
        name: &str,
        address: SocketAddr,
        authority: Option<NamedTempFile>,
    ) -> Result<Self> {
        let port = address.port();
        let has_tls = if authority.is_some() { "True" } else { "False" };
        let variables = format!("NAME, PORT, HAS_TLS = {name:?}, {port}, {has_tls}");
        let session = SessionClient::start(&server, &format!("{variables}\nADDRESS = AUTHORITY = None"))?;
        let path = authority.as_ref().map_or("None".to_owned(), |file| format!("\"{}\"", file.path().display()));
        let direct = format!("{variables}\nADDRESS, AUTHORITY = \"{}\", {path}", address.ip());
        let direct = DirectClient::start(setup.python()?, &direct)?;
        Ok(Self { session, direct, _server: server, _authority: authority })
    }

    /// Samples a call of both clients in turns. The rows are those of the session and of the host.
    fn sample(&mut self, what: &str, call: &str, samples: usize) -> (Option<[Row; 2]>, Section) {
        let Self { session, direct, .. } = self;
        let mut candidates = [
            Candidate::new(format!("ringfence, {what}"), || session.time(call)),
            Candidate::new(format!("direct, {what}"), || direct.time(call)),
        ];
        sample_in_turns(&mut candidates, samples);
        let Section { rows, not_measured } = Section::of_candidates(candidates.into());
        (rows.try_into().ok(), Section { rows: Vec::new(), not_measured })
    }

    fn measure_requests(&mut self, setup: &Setup, suffix: &str) -> Section {
        let requests = [
            (format!("kept_request({KEPT_REQUESTS})"), "request on a kept connection", 1.0),
            ("first_connection()".into(), "lookup, connection and request", 5.0),
        ];
        let mut section = Section::default();
        for (call, what, limit) in requests {
            let what = format!("{what}{suffix}");
            let (rows, failures) = self.sample(&what, &call, setup.workload.calls / 10);
            section.extend(failures);
            let Some([ours, direct]) = rows else { continue };
            let added = Row::single(format!("{what}: added"), "ms", ours.value - direct.value);
            let added = added.target(Figure::Value, Bound::AtMost, limit);
            section.rows.extend([ours.compared_with(Some(&direct)), direct, added]);
        }
        section
    }

    fn measure_transfer(&mut self, setup: &Setup) -> Section {
        let bytes = setup.workload.transfer_bytes;
        let what = format!("download of {} MiB", bytes >> 20);
        let (rows, mut section) = self.sample(&what, &format!("transfer({bytes})"), setup.workload.transfers);
        if let Some(times) = rows {
            let [ours, direct] = times.map(|row| rates(bytes, row));
            let ours = ours.compared_with(Some(&direct)).target(Figure::Ratio, Bound::AtLeast, 0.8);
            section.rows.extend([ours, direct]);
        }
        section
    }
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
