//! `ringfence server pin NAME`.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use crate::commands::session::print;
use crate::failure::Failure;
use crate::operator;

/// Accept what a server offers as it is now.
///
/// Tools, prompts, resources and instructions that change afterwards, or are new, are held back until they are accepted
/// again; `ringfence server show` and `server tools` show which are. Without options everything is accepted.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The server's name
    name: String,
    /// Accept only these tools, and what the options name
    #[arg(value_name = "TOOL")]
    tools: Vec<String>,
    /// Accept only this prompt, and what else is named
    #[arg(long = "prompt", value_name = "PROMPT")]
    prompts: Vec<String>,
    /// Accept only this resource or resource template, and what else is named
    #[arg(long = "resource", value_name = "URI")]
    resources: Vec<String>,
    /// Accept only the instructions, and what else is named
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
    let answer = operator::ask_hosted(name, "POST", "/pin", Some(&body))?;
    print(&format!("accepted {} of {name}\n", accepted(&answer)))
}

/// Describes the items that were accepted.
fn accepted(answer: &Value) -> String {
    let count = |key: &str| answer[key].as_u64().or_else(|| answer[key].as_array()?.len().try_into().ok());
    let counted = |key: &str, what: &str| match count(key)? {
        0 if key != "pinned" => None,
        1 => Some(format!("1 {what}")),
        count => Some(format!("{count} {what}s")),
    };
    let mut parts = vec![counted("pinned", "tool").unwrap_or_else(|| "the tools".into())];
    parts.extend(counted("prompts", "prompt"));
    parts.extend(counted("resources", "resource"));
    parts.extend((answer["instructions"] == true).then(|| "the instructions".to_owned()));
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_accepted_is_counted() {
        for (answer, expected) in [
            (json!({"pinned": ["a", "b"]}), "2 tools"),
            (json!({"pinned": 1, "prompts": 0, "resources": 0, "instructions": false}), "1 tool"),
            (
                json!({"pinned": 0, "prompts": 1, "resources": 3, "instructions": true}),
                "0 tools, 1 prompt, 3 resources, the instructions",
            ),
            (json!({}), "the tools"),
        ] {
            assert_eq!(accepted(&answer), expected);
        }
    }
}
