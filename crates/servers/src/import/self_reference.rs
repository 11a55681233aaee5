//! Skips entries that would start ringfence itself, because a ringfence that hosts ringfence would start an endless
//! chain of processes.

use serde_json::Value;

use super::formats::SkipReason;
use super::locations::UserDirectories;

const PROGRAM_NAME: &str = "ringfence";
const ALLOW_VARIABLE: &str = "RINGFENCE_ALLOW_SELF_SERVER";
/// The variable of the program that code mode replaces.
const ALLOW_VARIABLE_OF_MCP_BRIDGE: &str = "MCP_BRIDGE_ALLOW_SELF_SERVER";

pub(super) fn check(name: &str, entry: &Value, directories: &UserDirectories) -> Result<(), SkipReason> {
    let is_set = |name| directories.env.get(name).is_some_and(|value: &String| is_true(value));
    if is_set(ALLOW_VARIABLE) || is_set(ALLOW_VARIABLE_OF_MCP_BRIDGE) {
        return Ok(());
    }
    let texts = |key: &str| match entry.get(key) {
        Some(Value::String(text)) => vec![text.as_str()],
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let part = if is_program_name(name) {
        "name"
    } else if texts("command").into_iter().any(contains_program_name) {
        "command"
    } else if texts("args").into_iter().any(contains_program_name) {
        "arguments"
    } else {
        return Ok(());
    };
    Err(SkipReason::new(format!("the server would start ringfence itself, according to its {part}"))
        .hint(format!("set {ALLOW_VARIABLE}=1 to import it")))
}

fn is_true(value: &str) -> bool {
    matches!(value.trim().to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on")
}

/// Whether a word of a text is the name of the program: an argument may be a shell command.
fn contains_program_name(text: &str) -> bool {
    let separators =
        |char: char| char.is_whitespace() || matches!(char, '\'' | '"' | ';' | '&' | '|' | '(' | ')' | '=');
    text.split(separators).any(|word| is_program_name(word.rsplit('/').next().unwrap_or_default()))
}

/// Whether a word is the name of the program, maybe with a version (`ringfence@1`) or an extension.
fn is_program_name(word: &str) -> bool {
    let word = word.split('@').next().unwrap_or_default();
    let word = word.strip_suffix(".exe").unwrap_or(word);
    word.eq_ignore_ascii_case(PROGRAM_NAME)
}
