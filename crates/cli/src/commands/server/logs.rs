//! `ringfence server logs NAME`.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use crate::commands::session::{print, print_json, visible};
use crate::failure::Failure;
use crate::operator;

/// Show the last lines that a server wrote to its standard error.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The server's name
    name: String,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let lines = operator::ask_hosted(&arguments.name, "GET", "", None)?["stderr"].take();
    if arguments.json {
        return print_json(&lines);
    }
    let lines = lines.as_array().into_iter().flatten().filter_map(Value::as_str);
    // Whoever wrote them may want more of the terminal than to be read.
    print(&lines.map(|line| visible(line) + "\n").collect::<String>())
}
