//! `ringfence allow server NAME HOST…`.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::print_rules;
use crate::failure::Failure;
use crate::operator_client::request_hosted;
use crate::output::print_json;

/// Allow a hosted server to connect to hosts until it restarts.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The name of the server
    name: String,
    /// The hosts, as `HOST[:PORT][+private]`
    #[arg(required = true, value_name = "HOST")]
    hosts: Vec<String>,
    /// Add the hosts to the server's entry, so that they stay allowed, and restart the server
    #[arg(long)]
    always: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { name, hosts, always, json } = arguments;
    let response = request_hosted(name, "POST", "/allow", Some(&json!({"hosts": hosts, "always": always})))?;
    if *json {
        return print_json(&response);
    }
    print_rules(name, &response)
}
