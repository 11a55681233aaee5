//! A tool call through the gateway, compared with the same call made directly and through other gateways.
//!
//! There are two upstreams with an `echo` tool: one over streamable HTTP, and one over stdio, which ringfence hosts in a
//! sandbox. Other gateways serve the stdio upstream, which is their purpose. The same client calls all of them.

mod echo_client;
mod stdio_client;
mod throughput;

use anyhow::{Context as _, Result, anyhow};

use super::Setup;
use crate::peers::{Proxy, echo_stdio};
use crate::programs::OwnCopy;
use crate::report::{Bound, Figure, Row, Section};
use crate::sampling::{Candidate, sample_in_turns};
use crate::server::Server;
use echo_client::EchoClient;
use stdio_client::StdioClient;

/// The name of the stdio upstream in the configuration of ringfence, and of its tool.
pub(super) const STDIO_SERVER: &str = "pipe";
pub(super) const STDIO_TOOL: &str = "pipe__echo";

const DIRECT_HTTP: &str = "direct, HTTP";
const RINGFENCE_HTTP: &str = "ringfence, HTTP";
const DIRECT_STDIO: &str = "direct, stdio";
const RINGFENCE_STDIO: &str = "ringfence, stdio in a sandbox";
const MCP_PROXY: &str = "mcp-proxy, stdio";
const SUPERGATEWAY: &str = "supergateway, stdio";

/// Rows, each with the row that it is compared with. The first two are ours.
const PAIRS: [(&str, &str); 4] = [
    (RINGFENCE_HTTP, DIRECT_HTTP),
    (RINGFENCE_STDIO, DIRECT_STDIO),
    (MCP_PROXY, DIRECT_STDIO),
    (SUPERGATEWAY, DIRECT_STDIO),
];

const CONCURRENT_CLIENTS: usize = 16;

/// An MCP endpoint over HTTP.
struct Endpoint {
    name: &'static str,
    /// Host and port, or the reason why the endpoint does not exist.
    address: Result<String>,
    /// The name of its echo tool.
    tool: &'static str,
}

impl Endpoint {
    fn connect(&self) -> Result<EchoClient> {
        let address = self.address.as_ref().map_err(copy)?;
        EchoClient::connect(address, self.tool)
    }

    /// Returns a candidate; one that cannot connect fails in every sample with the reason.
    fn candidate<'a>(&self) -> Candidate<'a> {
        let mut client = self.connect();
        Candidate::new(self.name, move || match &mut client {
            Ok(client) => client.call(),
            Err(error) => Err(copy(error)),
        })
    }
}

pub(super) fn measure(setup: &Setup) -> Result<Section> {
    let echo_program = OwnCopy::create()?;
    let echo_server = Server::prepare_echo()?.start()?;
    let ringfence = setup.start_server(&configuration(&echo_server.address, &echo_program)?);
    let ringfence_address = || ringfence.as_ref().map(|server| server.address.clone()).map_err(copy);
    let proxies = [Proxy::mcp_proxy(echo_program.path()), Proxy::supergateway(echo_program.path())];
    let [mcp_proxy, supergateway] = proxies.each_ref().map(|proxy| proxy.as_ref().map(Proxy::address).map_err(copy));
    let endpoints = [
        Endpoint { name: DIRECT_HTTP, address: Ok(echo_server.address.clone()), tool: "echo" },
        Endpoint { name: RINGFENCE_HTTP, address: ringfence_address(), tool: "http__echo" },
        Endpoint { name: RINGFENCE_STDIO, address: ringfence_address(), tool: STDIO_TOOL },
        Endpoint { name: MCP_PROXY, address: mcp_proxy, tool: "echo" },
        Endpoint { name: SUPERGATEWAY, address: supergateway, tool: "echo" },
    ];
    let mut stdio_client = StdioClient::start(echo_program.path())?;
    let mut candidates: Vec<Candidate<'_>> = endpoints.iter().map(Endpoint::candidate).collect();
    candidates.push(Candidate::new(DIRECT_STDIO, || stdio_client.call()));
    sample_in_turns(&mut candidates, setup.workload.calls);
    let Section { rows: times, mut not_measured } = Section::of_candidates(candidates);
    // Those that failed are already listed with the reason.
    let is_measured = |endpoint: &&Endpoint| times.iter().any(|row| row.label == endpoint.name);
    let rates = rates(endpoints.iter().filter(is_measured), setup.workload.calls, &mut not_measured);
    let overhead = overhead(&times);
    let rows = compare(times, &PAIRS).into_iter().chain(overhead).chain(rates).collect();
    Ok(Section { rows, not_measured })
}

/// Returns the time that ringfence adds to a direct call.
fn overhead(times: &[Row]) -> Vec<Row> {
    let find = |label: &str| times.iter().find(|row| row.label == label);
    let row = |(label, direct): &(&str, &str)| {
        let added = find(label)?.value - find(direct)?.value;
        let row = Row::single(format!("{label}: overhead over {direct}"), "ms", added);
        Some(row.target(Figure::Value, Bound::AtMost, 0.3))
    };
    PAIRS[..2].iter().filter_map(row).collect()
}

/// Measures calls per second with concurrent clients.
fn rates<'a>(endpoints: impl Iterator<Item = &'a Endpoint>, calls: usize, not_measured: &mut Vec<String>) -> Vec<Row> {
    let mut rates = Vec::new();
    for endpoint in endpoints {
        let label = rate_label(endpoint.name);
        match throughput::measure(CONCURRENT_CLIENTS, calls, || endpoint.connect()) {
            Ok(samples) => rates.push(Row::of_few_samples(label, "calls/s", samples)),
            Err(error) => not_measured.push(format!("{label}: {error:#}")),
        }
    }
    let (ours, direct) = (rate_label(RINGFENCE_HTTP), rate_label(DIRECT_HTTP));
    let add_target = |row: Row| if row.label == ours { row.target(Figure::Value, Bound::AtLeast, 5000.0) } else { row };
    compare(rates, &[(&ours, &direct)]).into_iter().map(add_target).collect()
}

fn rate_label(name: &str) -> String {
    format!("{name}, {CONCURRENT_CLIENTS} clients at once")
}

/// Adds to each row its ratio to the other row of its pair.
fn compare(rows: Vec<Row>, pairs: &[(&str, &str)]) -> Vec<Row> {
    let references: Vec<Row> = rows.iter().map(|row| Row::single(row.label.clone(), row.unit, row.value)).collect();
    let compare_one = |row: Row| {
        let pair = pairs.iter().find(|(label, _)| *label == row.label);
        let reference = pair.and_then(|(_, other)| references.iter().find(|row| row.label == *other));
        row.compared_with(reference)
    };
    rows.into_iter().map(compare_one).collect()
}

/// The configuration of ringfence with both upstreams.
fn configuration(echo_address: &str, echo_program: &OwnCopy) -> Result<String> {
    Ok(format!("[servers.http]\nurl = \"http://{echo_address}/mcp\"\n\n{}", stdio_server_entry(echo_program)?))
}

/// The configuration of the stdio upstream alone.
pub(super) fn stdio_server_entry(echo_program: &OwnCopy) -> Result<String> {
    let path = echo_program.path().to_str().context("the path of the temporary directory is not UTF-8")?;
    Ok(format!("[servers.{STDIO_SERVER}]\ncommand = {path:?}\nargs = [{:?}]\n", echo_stdio::ROLE))
}

/// `anyhow::Error` cannot be cloned.
fn copy(error: &anyhow::Error) -> anyhow::Error {
    anyhow!("{error:#}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_compared_only_within_their_pairs() {
        let rows = ["a", "b", "c"].map(|label| Row::single(label, "ms", if label == "a" { 3.0 } else { 2.0 }));
        let rows = compare(rows.into(), &[("a", "b"), ("c", "none")]);
        let ratios: Vec<_> = rows.iter().map(|row| row.ratio.as_ref().map(|ratio| ratio.value)).collect();
        assert_eq!(ratios, [Some(1.5), None, None]);
    }
}
