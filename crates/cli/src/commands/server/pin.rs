//! `ringfence server pin NAME`.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::commands::session::print;
use crate::failure::Failure;
use crate::operator;

/// Accept the tools of a server as they are now.
///
/// A tool whose description or schema changes afterwards is held back until it is accepted again; `ringfence server
/// tools` shows which are.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The server's name
    name: String,
    /// The tools to accept; all of them unless given
    #[arg(value_name = "TOOL")]
    tools: Vec<String>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let body = if arguments.tools.is_empty() { json!({}) } else { json!({"tools": arguments.tools}) };
    let answer = operator::ask_hosted(&arguments.name, "POST", "/pin", Some(&body))?;
    let said = match answer["pinned"].as_array().map(Vec::len).or_else(|| answer["pinned"].as_u64()?.try_into().ok()) {
        Some(1) => format!("accepted 1 tool of {}\n", arguments.name),
        Some(count) => format!("accepted {count} tools of {}\n", arguments.name),
        None => format!("accepted the tools of {}\n", arguments.name),
    };
    print(&said)
}
