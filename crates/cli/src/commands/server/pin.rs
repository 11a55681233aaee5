//! `ringfence server pin NAME`.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::operator_client::request_hosted;
use crate::output::print;

/// Accept the present tools, prompts, resources and instructions of a server.
///
/// If one of them changes later, or a new one appears, it is withheld until it is accepted; `ringfence server show` and
/// `ringfence server tools` show which are withheld. Without TOOL and options, everything is accepted.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The name of the server
    name: String,
    /// Accept only these tools, and the items that options name
    #[arg(value_name = "TOOL")]
    tools: Vec<String>,
    /// Accept only this prompt, and the other named items
    #[arg(long = "prompt", value_name = "PROMPT")]
    prompts: Vec<String>,
    /// Accept only this resource or resource template, and the other named items
    #[arg(long = "resource", value_name = "URI")]
    resources: Vec<String>,
    /// Accept only the instructions, and the other named items
    #[arg(long)]
    instructions: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Arguments { name, tools, prompts, resources, instructions } = arguments;
    let mut body = json!({});
    for (key, names) in [("tools", tools), ("prompts", prompts), ("resources", resources)] {
        if !names.is_empty() {
            body[key] = json!(names);
        }
    }
    if *instructions {
        body["instructions"] = true.into();
    }
    let response = request_hosted(name, "POST", "/pin", Some(&body))?;
    print(&format!("accepted {} of {name}\n", accepted(&response)))
}

/// Describes the items that were accepted.
fn accepted(response: &Value) -> String {
    let count = |key: &str| response[key].as_u64().or_else(|| response[key].as_array()?.len().try_into().ok());
    let counted = |key: &str, noun: &str| match count(key)? {
        0 if key != "pinned" => None,
        1 => Some(format!("1 {noun}")),
        count => Some(format!("{count} {noun}s")),
    };
    let mut parts = vec![counted("pinned", "tool").unwrap_or_else(|| "the tools".into())];
    parts.extend(counted("prompts", "prompt"));
    parts.extend(counted("resources", "resource"));
    parts.extend((response["instructions"] == true).then(|| "the instructions".to_owned()));
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_items_are_counted() {
        for (response, expected) in [
            (json!({"pinned": ["a", "b"]}), "2 tools"),
            (json!({"pinned": 1, "prompts": 0, "resources": 0, "instructions": false}), "1 tool"),
            (
                json!({"pinned": 0, "prompts": 1, "resources": 3, "instructions": true}),
                "0 tools, 1 prompt, 3 resources, the instructions",
            ),
            (json!({}), "the tools"),
        ] {
            assert_eq!(accepted(&response), expected);
        }
    }
}
