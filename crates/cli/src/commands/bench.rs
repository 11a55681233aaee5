//! `ringfence bench`: what sessions and tools cost on this host, each figure beside its peers in the same run.
//!
//! The server that is measured is this program itself, started as `ringfence serve` with a state directory of its own
//! and spoken to over HTTP. Nothing is judged by the exit code: figures are shown beside their targets.
#![allow(clippy::doc_markdown)] // the comments on arguments are what `--help` shows

mod burst;
mod client;
mod code;
mod cold;
mod density;
mod effort;
mod flood;
mod gateway;
mod host;
mod memory;
mod peers;
mod podman;
mod report;
mod roles;
mod round_trip;
mod rows;
mod search;
mod server;
mod sessions;
mod start;
mod statistics;
mod table;
mod tokens;
mod tool_data;
mod turns;
mod warm;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::failure::{Failure, notice};
use effort::Effort;
use host::Host;
use report::{Report, Section};

pub(crate) use gateway::{ROLE as STDIO_ECHO_ROLE, serve as serve_stdio_echo};
pub(crate) use roles::{ECHO_ROLE, SERVER_ROLE, serve, serve_echo};

/// Measure sessions on this host, side by side with bare interpreters and other sandboxes.
///
/// It starts servers of its own and leaves nothing behind. Peers that are not installed are left out, with the
/// reason. They take turns with ringfence in one run: compare the ratios of one run, never bare times of two.
///
/// The table is Markdown. It takes some minutes; the machine should have nothing else to do.
#[derive(Args)]
pub(crate) struct Arguments {
    /// What to measure [default: sessions]
    #[arg(value_enum)]
    what: Vec<What>,
    /// Print JSON with every sample instead of a table
    #[arg(long)]
    json: bool,
    /// Take a few samples of everything: to see that it works, not to compare
    #[arg(long)]
    quick: bool,
    /// How many live sessions `density` makes [default: 200]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    sessions: Option<u32>,
    /// Tools and questions for `search` and `tokens`, in the shape of tests/data/tools.json [default: for `tokens` the
    /// servers that are configured, if tools of any are known; else those that ringfence brings along]
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
}

/// In the order in which they are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// All that follow, up to the server itself
    Sessions,
    /// From no session to its first print, with sandboxes waiting ready
    Warm,
    /// The same where the interpreter must be started
    Cold,
    /// A call in a live session, beside the echo tool of a bare rmcp server
    RoundTrip,
    /// A hundred sessions at once
    Burst,
    /// The memory of many idle sessions, each of which still answers
    Density,
    /// A guest that prints without end
    Flood,
    /// The server itself: its size, start and memory
    Server,
    /// A tool of another server through the gateway, beside calling it directly and other gateways (only if named)
    Gateway,
    /// A tool called from code in a session, beside the same call through the gateway (only if named)
    Code,
    /// How often a question finds the tool that answers it (only if named)
    Search,
    /// What the tools of servers cost in tokens, beside code mode (only if named)
    Tokens,
}

impl What {
    const EACH: [Self; 11] = [
        Self::Warm,
        Self::Cold,
        Self::RoundTrip,
        Self::Burst,
        Self::Density,
        Self::Flood,
        Self::Server,
        Self::Gateway,
        Self::Code,
        Self::Search,
        Self::Tokens,
    ];

    /// Measured only if it is named.
    fn is_apart(self) -> bool {
        matches!(self, Self::Gateway | Self::Code | Self::Search | Self::Tokens)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Sessions => "sessions",
            Self::Warm => "warm",
            Self::Cold => "cold",
            Self::RoundTrip => "round trip",
            Self::Burst => "burst",
            Self::Density => "density",
            Self::Flood => "flood",
            Self::Server => "server",
            Self::Gateway => "gateway",
            Self::Code => "code",
            Self::Search => "search",
            Self::Tokens => "tokens",
        }
    }

    fn measure(self, effort: &Effort, host: &Host, data: Option<&Path>) -> anyhow::Result<Section> {
        match self {
            Self::Sessions => Ok(Section::default()),
            Self::Warm => warm::measure(effort, host),
            Self::Cold => cold::measure(effort, host),
            Self::RoundTrip => round_trip::measure(effort),
            Self::Burst => burst::measure(effort, host),
            Self::Density => density::measure(effort, host),
            Self::Flood => flood::measure(effort, host),
            Self::Server => start::measure(effort),
            Self::Gateway => gateway::measure(effort),
            Self::Code => code::measure(effort),
            Self::Search => search::measure(effort, data),
            Self::Tokens => tokens::measure(data),
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let effort = Effort::new(arguments.quick, arguments.sessions);
    let host = Host::look();
    let is_wanted = |what: &What| {
        let are_sessions = arguments.what.is_empty() || arguments.what.contains(&What::Sessions);
        arguments.what.contains(what) || are_sessions && !what.is_apart()
    };
    let (is_quick, sections) = (arguments.quick, Vec::new());
    let mut report = Report { host: host.to_json(), caption: host.caption(), is_quick, sections };
    for what in What::EACH.into_iter().filter(is_wanted) {
        notice(&format!("measuring {}", what.name()));
        // What cannot be measured here is no reason to leave out the rest.
        let measured = what.measure(&effort, &host, arguments.data.as_deref());
        let section = measured.unwrap_or_else(|error| Section::failed(&format!("{error:#}")));
        report.sections.push((what.name(), section));
    }
    let text = if arguments.json { format!("{:#}\n", report.to_json()) } else { table::show(&report) };
    match anstream::stdout().write_all(text.as_bytes()) {
        // Whoever reads it has read enough.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new("standard output cannot be written").because(&error))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
