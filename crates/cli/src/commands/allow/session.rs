//! `ringfence allow session ID HOST…`.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::print_rules;
use crate::failure::Failure;
use crate::operator_client::find_session;
use crate::output::print_json;

/// Allow a session to connect to hosts until it ends.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The id of the session, or a unique prefix of it
    id: String,
    /// The hosts, as `HOST[:PORT][+private]`
    #[arg(required = true, value_name = "HOST")]
    hosts: Vec<String>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let session = find_session(&arguments.id)?;
    let response = session.request("POST", "/allow", Some(&json!({"hosts": arguments.hosts})))?;
    if arguments.json {
        return print_json(&response);
    }
    print_rules(response["session_id"].as_str().unwrap_or_default(), &response)
}
