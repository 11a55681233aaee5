//! `ringfence allow`: extends what a running session or hosted server may reach.

mod server;
mod session;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::failure::Failure;
use crate::output::print;

/// Allow a running session or server to connect to hosts.
///
/// HOST is HOST[:PORT][+private]: a name, *.DOMAIN for all subdomains, or an address; 80 and 443 without a port; `+private`
/// for names with private addresses. New connections use the rule immediately.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Session(session::Arguments),
    Server(server::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        Command::Session(arguments) => session::run(arguments),
        Command::Server(arguments) => server::run(arguments),
    }
}

/// Prints the rules in a response.
fn print_rules(whose: &str, response: &Value) -> Result<ExitCode, Failure> {
    let hosts: Vec<&str> = response["hosts"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    print(&format!("{whose} may reach {}\n", hosts.join(", ")))
}
