//! `ringfence server logs NAME`.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use crate::failure::Failure;
use crate::operator_client::request_hosted;
use crate::output::{print, print_json, visible};

/// Show the last lines that a server has written to standard error.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The name of the server
    name: String,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let lines = request_hosted(&arguments.name, "GET", "", None)?["stderr"].take();
    if arguments.json {
        return print_json(&lines);
    }
    let lines = lines.as_array().into_iter().flatten().filter_map(Value::as_str);
    // The server is not trusted: its lines could contain terminal sequences.
    print(&lines.map(|line| visible(line) + "\n").collect::<String>())
}
