//! The benchmarks: one module each, with a function that returns a [`Section`] of the report.

mod burst;
mod code;
mod cold;
mod density;
mod egress;
mod first_print;
mod flood;
mod gateway;
mod packages;
mod round_trip;
mod search;
mod server_start;
mod tokens;
mod warm;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::arguments::Benchmark;
use crate::host::Host;
use crate::report::Section;
use crate::server::Server;
use crate::workload::Workload;

/// The input of all benchmarks.
pub(crate) struct Setup {
    pub(crate) workload: Workload,
    pub(crate) host: Host,
    /// The program to measure. `None` if it was not found and no selected benchmark needs it.
    pub(crate) ringfence: Option<PathBuf>,
    /// The file with tools and queries that the user named.
    pub(crate) tool_data: Option<PathBuf>,
}

impl Setup {
    fn ringfence(&self) -> Result<&Path> {
        self.ringfence.as_deref().context("the program `ringfence` was not found")
    }

    /// Starts `ringfence serve` with this configuration file.
    fn start_server(&self, configuration: &str) -> Result<Server> {
        Server::prepare(self.ringfence()?, configuration)?.start()
    }

    fn python(&self) -> Result<&Path> {
        self.host.python.as_deref().context("python3 is not installed")
    }
}

/// A selected benchmark.
#[derive(Clone, Copy)]
pub(crate) struct Selected(&'static Entry);

struct Entry {
    benchmark: Benchmark,
    title: &'static str,
    measure: fn(&Setup) -> Result<Section>,
    /// True for the benchmarks of the group `sessions`.
    is_in_sessions: bool,
    needs_ringfence: bool,
}

const fn entry(benchmark: Benchmark, title: &'static str, measure: fn(&Setup) -> Result<Section>) -> Entry {
    Entry { benchmark, title, measure, is_in_sessions: true, needs_ringfence: true }
}

/// All benchmarks, in the order in which they run.
static ALL: [Entry; 13] = [
    entry(Benchmark::Warm, "warm", warm::measure),
    entry(Benchmark::Cold, "cold", cold::measure),
    entry(Benchmark::RoundTrip, "round trip", round_trip::measure),
    entry(Benchmark::Burst, "burst", burst::measure),
    entry(Benchmark::Density, "density", density::measure),
    entry(Benchmark::Flood, "flood", flood::measure),
    entry(Benchmark::Server, "server", server_start::measure),
    Entry { is_in_sessions: false, ..entry(Benchmark::Gateway, "gateway", gateway::measure) },
    Entry { is_in_sessions: false, ..entry(Benchmark::Code, "code", code::measure) },
    Entry { is_in_sessions: false, ..entry(Benchmark::Egress, "egress", egress::measure) },
    Entry { is_in_sessions: false, ..entry(Benchmark::Packages, "packages", packages::measure) },
    Entry { is_in_sessions: false, needs_ringfence: false, ..entry(Benchmark::Search, "search", search::measure) },
    Entry { is_in_sessions: false, needs_ringfence: false, ..entry(Benchmark::Tokens, "tokens", tokens::measure) },
];

/// Returns the named benchmarks in their order; the group `sessions` if none is named.
pub(crate) fn select(named: &[Benchmark]) -> Vec<Selected> {
    let has_sessions = named.is_empty() || named.contains(&Benchmark::Sessions);
    let is_selected = |entry: &&Entry| named.contains(&entry.benchmark) || has_sessions && entry.is_in_sessions;
    ALL.iter().filter(is_selected).map(Selected).collect()
}

impl Selected {
    pub(crate) fn title(self) -> &'static str {
        self.0.title
    }

    pub(crate) fn needs_ringfence(self) -> bool {
        self.0.needs_ringfence
    }

    /// Runs the benchmark. A failure becomes a note in the report, so that the other benchmarks still run.
    pub(crate) fn run(self, setup: &Setup) -> Section {
        (self.0.measure)(setup).unwrap_or_else(|error| Section::failed(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_the_default_and_other_benchmarks_must_be_named() {
        let titles = |named: &[Benchmark]| select(named).into_iter().map(Selected::title).collect::<Vec<_>>();
        let sessions = ["warm", "cold", "round trip", "burst", "density", "flood", "server"];
        assert_eq!(titles(&[]), sessions);
        assert_eq!(titles(&[Benchmark::Sessions]), sessions);
        assert_eq!(titles(&[Benchmark::Search, Benchmark::Cold, Benchmark::Cold]), ["cold", "search"]);
        assert_eq!(titles(&[Benchmark::Sessions, Benchmark::Code]).len(), 8);
    }
}
