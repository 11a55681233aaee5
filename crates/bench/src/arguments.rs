//! The command line of the benchmark.
//!
//! The `ringfence` program includes this file too, so that `ringfence bench --help` works if `ringfence-bench` is not
//! installed. The file therefore uses only clap and the standard library.
#![allow(clippy::doc_markdown)] // the doc comments of arguments are the text of `--help`

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Measure sessions on this host, side by side with bare interpreters and other sandboxes.
///
/// The benchmark starts its own servers and removes them at the end. Peers that are not installed are left out; the
/// report says why. All peers take turns with ringfence: compare ratios within one run, not times of two runs.
///
/// The report is a Markdown table. A run takes some minutes; the machine should be idle otherwise.
#[derive(Args)]
pub(crate) struct Arguments {
    /// What to measure [default: sessions]
    #[arg(value_enum, value_name = "WHAT")]
    pub(crate) benchmarks: Vec<Benchmark>,
    /// Print JSON with all samples instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Take only a few samples: to check that everything works, not to compare
    #[arg(long)]
    pub(crate) quick: bool,
    /// Number of live sessions in `density` [default: 200]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) sessions: Option<u32>,
    /// Tools and queries for `search` and `tokens`, in the format of tests/data/tools.json [default: for `tokens` the
    /// configured servers, if the tools of any are known; otherwise the built-in data]
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Option<PathBuf>,
}

/// A benchmark, or a group of them. Each is run at most once, in a fixed order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Benchmark {
    /// Everything from `warm` to `server`
    Sessions,
    /// Time from no session to its first output, with sandboxes ready in the pool
    Warm,
    /// The same without a pool: the interpreter is started for each session
    Cold,
    /// A call in a live session, compared with the echo tool of a bare rmcp server
    RoundTrip,
    /// A hundred sessions created at the same time
    Burst,
    /// Memory of many idle sessions; each must still respond
    Density,
    /// A guest that prints without end
    Flood,
    /// The server process: program size, start-up time and memory
    Server,
    /// A tool of another server through the gateway, compared with a direct call and with other gateways (only if named)
    Gateway,
    /// A tool called from code in a session, compared with the same call through the gateway (only if named)
    Code,
    /// Requests from a session to an allowed host, compared with direct requests (only if named)
    Egress,
    /// Installation of packages in new sessions, with a filled cache (only if named)
    Packages,
    /// How often a query finds the right tool (only if named)
    Search,
    /// Tokens that the tools of servers cost, compared with code mode (only if named)
    Tokens,
}
