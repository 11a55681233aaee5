//! A call of a tool through the gateway, beside the same call made directly and through other gateways.
//!
//! There are two upstreams, both with an `echo` tool: one over streamable HTTP, one over standard streams, which the
//! gateway hosts in a sandbox. Other gateways are compared over the second, since that is what they are for. All are
//! spoken to by the same client.

mod echo;
mod peer;
mod pipe;
mod rate;
mod talk;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use tempfile::TempDir;

use super::effort::Effort;
use super::report::Section;
use super::rows::{Bound, Figure, Row, of_contestants};
use super::server::Server;
use super::turns::{Contestant, take_turns};
use peer::Peer;
use pipe::Pipe;
use talk::Talk;

pub(crate) use echo::{ROLE, serve};

const DIRECT: &str = "directly, HTTP";
const OURS: &str = "ringfence, HTTP";
const DIRECT_PIPE: &str = "directly, stdio";
const OURS_PIPE: &str = "ringfence, stdio in a sandbox";
const MCP_PROXY: &str = "mcp-proxy, stdio";
const SUPERGATEWAY: &str = "supergateway, stdio";

/// What is compared with what.
const PAIRS: [(&str, &str); 4] =
    [(OURS, DIRECT), (OURS_PIPE, DIRECT_PIPE), (MCP_PROXY, DIRECT_PIPE), (SUPERGATEWAY, DIRECT_PIPE)];

/// Clients that call at once.
const CLIENTS: usize = 16;

/// Something that is spoken to over HTTP: where, and what its tool is called there.
struct Place {
    name: &'static str,
    address: Result<String>,
    tool: &'static str,
}

impl Place {
    fn talk(&self) -> Result<Talk> {
        let address = self.address.as_ref().map_err(|error| anyhow!("{error:#}"))?;
        Talk::open(address, self.tool)
    }

    /// One whose every turn fails has the reason told.
    fn contestant<'a>(&self) -> Contestant<'a> {
        let mut talk = self.talk();
        Contestant::new(self.name, move || match &mut talk {
            Ok(talk) => talk.call(),
            Err(error) => Err(anyhow!("{error:#}")),
        })
    }
}

pub(super) fn measure(effort: &Effort) -> Result<Section> {
    let program = Program::copy()?;
    let echo = Server::start_echo()?;
    let ours = Server::start(&configuration(&echo.address, &program)?);
    let our_address = || ours.as_ref().map(|ours| ours.address.clone()).map_err(|error| anyhow!("{error:#}"));
    let peers = [Peer::mcp_proxy(&program.path), Peer::supergateway(&program.path)];
    let [mcp_proxy, supergateway] =
        peers.each_ref().map(|peer| peer.as_ref().map(Peer::address).map_err(|error| anyhow!("{error:#}")));
    let places = [
        Place { name: DIRECT, address: Ok(echo.address.clone()), tool: "echo" },
        Place { name: OURS, address: our_address(), tool: "http__echo" },
        Place { name: OURS_PIPE, address: our_address(), tool: "pipe__echo" },
        Place { name: MCP_PROXY, address: mcp_proxy, tool: "echo" },
        Place { name: SUPERGATEWAY, address: supergateway, tool: "echo" },
    ];
    let mut pipe = Pipe::start(&program.path)?;
    let mut contestants: Vec<Contestant<'_>> = places.iter().map(Place::contestant).collect();
    contestants.push(Contestant::new(DIRECT_PIPE, || pipe.call()));
    take_turns(&mut contestants, effort.calls);
    let (times, mut left_out) = of_contestants(contestants);
    // Why somebody is out has been told.
    let is_in = |place: &&Place| times.iter().any(|row| row.what == place.name);
    let rates = rates(places.iter().filter(is_in), effort.calls, &mut left_out);
    let added = added(&times);
    let rows = compared(times, &PAIRS).into_iter().chain(added).chain(rates).collect();
    Ok(Section { rows, left_out })
}

/// What the gateway adds to a call.
fn added(times: &[Row]) -> Vec<Row> {
    let find = |name: &str| times.iter().find(|row| row.what == name);
    let add = |(name, direct): &(&str, &str)| {
        let added = find(name)?.value - find(direct)?.value;
        let row = Row::single(format!("{name}: more than {direct}"), "ms", added);
        Some(row.target(Figure::Value, Bound::AtMost, 0.3))
    };
    PAIRS[..2].iter().filter_map(add).collect()
}

fn rates<'a>(places: impl Iterator<Item = &'a Place>, calls: usize, left_out: &mut Vec<String>) -> Vec<Row> {
    let mut rates = Vec::new();
    for place in places {
        match rate::measure(CLIENTS, calls, || place.talk()) {
            Ok(samples) => rates.push(Row::of_few(named(place.name), "calls/s", samples)),
            Err(error) => left_out.push(format!("{}: {error:#}", named(place.name))),
        }
    }
    let (ours, direct) = (named(OURS), named(DIRECT));
    let judge = |row: Row| if row.what == ours { row.target(Figure::Value, Bound::AtLeast, 5000.0) } else { row };
    compared(rates, &[(&ours, &direct)]).into_iter().map(judge).collect()
}

fn named(place: &str) -> String {
    format!("{place}, {CLIENTS} clients at once")
}

/// Rows beside those that they are to be compared with.
fn compared(rows: Vec<Row>, pairs: &[(&str, &str)]) -> Vec<Row> {
    let values: Vec<Row> = rows.iter().map(|row| Row::single(row.what.clone(), row.unit, row.value)).collect();
    let compare = |row: Row| {
        let other = pairs.iter().find(|(name, _)| *name == row.what);
        let other = other.and_then(|(_, other)| values.iter().find(|row| row.what == *other));
        row.against(other)
    };
    rows.into_iter().map(compare).collect()
}

/// Both upstreams, as a person would write them.
fn configuration(echo: &str, program: &Program) -> Result<String> {
    Ok(format!("[servers.http]\nurl = \"http://{echo}/mcp\"\n\n{}", pipe_entry(program)?))
}

/// The upstream on standard streams.
pub(super) fn pipe_entry(program: &Program) -> Result<String> {
    let path = program.path.to_str().context("the temporary directory has an odd name")?;
    Ok(format!("[servers.pipe]\ncommand = {path:?}\nargs = [{ROLE:?}]\n"))
}

/// This program in a directory of its own: what is beside it would be staged with it.
pub(super) struct Program {
    path: std::path::PathBuf,
    _directory: TempDir,
}

impl Program {
    pub(super) fn copy() -> Result<Self> {
        let directory = tempfile::tempdir().context("there is no temporary directory")?;
        let path = directory.path().join("ringfence");
        fs::copy(std::env::current_exe()?, &path).context("the program cannot be copied")?;
        Ok(Self { path, _directory: directory })
    }
}

/// For a peer to start, on a machine that is busy.
const DEADLINE: Duration = Duration::from_secs(120);

/// The command line of the upstream on standard streams.
fn upstream(program: &Path) -> [String; 2] {
    [program.display().to_string(), ROLE.to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_compared_with_their_pairs_and_only_with_them() {
        let rows = ["a", "b", "c"].map(|name| Row::single(name, "ms", if name == "a" { 3.0 } else { 2.0 }));
        let rows = compared(rows.into(), &[("a", "b"), ("c", "none")]);
        let ratios: Vec<_> = rows.iter().map(|row| row.ratio.as_ref().map(|ratio| ratio.value)).collect();
        assert_eq!(ratios, [Some(1.5), None, None]);
    }
}
