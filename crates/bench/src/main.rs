//! The `ringfence-bench` program: measures a `ringfence` program and other programs of the same kind in one run.
//!
//! It starts `ringfence serve` with a temporary state directory and calls it over HTTP. The exit code does not depend on
//! the figures: the report shows them beside their targets.
//!
//! The program also starts itself in the roles of [`child`], [`peers::echo_http`] and [`peers::echo_stdio`].

mod arguments;
mod benchmarks;
mod child;
mod client;
mod host;
mod http;
mod peers;
mod process_memory;
mod programs;
mod report;
mod sampling;
mod server;
mod statistics;
mod terminal;
mod tool_data;
mod workload;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use arguments::Arguments;
use benchmarks::Setup;
use host::Host;
use peers::{echo_http, echo_stdio};
use report::Report;
use terminal::{FAILURE, notice, print, show_error};
use workload::Workload;

#[derive(Parser)]
#[command(name = "ringfence-bench", version, max_term_width = 100)]
struct CommandLine {
    /// The ringfence program to measure [default: `ringfence` beside this program, else on PATH]
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    #[command(flatten)]
    arguments: Arguments,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let result = match arguments.next().as_deref().and_then(OsStr::to_str) {
        Some(child::ROLE) => child::run_role(arguments).map(|never| match never {}),
        Some(echo_http::ROLE) => echo_http::serve().map(|()| ExitCode::SUCCESS),
        Some(echo_stdio::ROLE) => echo_stdio::serve().map(|()| ExitCode::SUCCESS),
        _ => match CommandLine::try_parse() {
            Ok(command_line) => run(command_line),
            Err(error) => {
                let _ = error.print();
                return ExitCode::from(if error.use_stderr() { FAILURE } else { 0 });
            }
        },
    };
    result.unwrap_or_else(|error| {
        show_error(&error);
        ExitCode::from(FAILURE)
    })
}

fn run(CommandLine { program, arguments }: CommandLine) -> anyhow::Result<ExitCode> {
    let selected = benchmarks::select(&arguments.benchmarks);
    let ringfence = match programs::find_ringfence(program) {
        Ok(path) => Some(path),
        Err(error) if selected.iter().any(|benchmark| benchmark.needs_ringfence()) => return Err(error),
        Err(_) => None,
    };
    let host = Host::inspect(ringfence.as_deref());
    let (host_json, caption) = (host.to_json(), host.caption());
    let workload = Workload::new(arguments.quick, arguments.sessions);
    let setup = Setup { workload, host, ringfence, tool_data: arguments.data };
    let mut report = Report { host: host_json, caption, is_quick: arguments.quick, sections: Vec::new() };
    for benchmark in selected {
        notice(&format!("measuring {}", benchmark.title()));
        report.sections.push((benchmark.title(), benchmark.run(&setup)));
    }
    print(&if arguments.json { format!("{:#}\n", report.to_json()) } else { report.to_table() })?;
    Ok(ExitCode::SUCCESS)
}
