//! Entries that would start ringfence itself: a server that hosts itself would start itself without end.

use serde_json::Value;

use super::places::Places;
use super::shapes::Reason;

const OURS: &str = "ringfence";
const ALLOW: &str = "RINGFENCE_ALLOW_SELF_SERVER";
/// Its name in the program that code mode takes the place of.
const ALLOW_TOO: &str = "MCP_BRIDGE_ALLOW_SELF_SERVER";

pub(super) fn check(name: &str, entry: &Value, places: &Places) -> Result<(), Reason> {
    let is_on = |name| places.env.get(name).is_some_and(|value: &String| is_yes(value));
    if is_on(ALLOW) || is_on(ALLOW_TOO) {
        return Ok(());
    }
    let texts = |key: &str| match entry.get(key) {
        Some(Value::String(text)) => vec![text.as_str()],
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let by = if is_ours(name) {
        "its name"
    } else if texts("command").into_iter().any(names_us) {
        "its command"
    } else if texts("args").into_iter().any(names_us) {
        "an argument"
    } else {
        return Ok(());
    };
    Err(Reason::new(format!("it would start ringfence itself, by {by}")).hint(format!("set {ALLOW}=1 to import it")))
}

fn is_yes(value: &str) -> bool {
    matches!(value.trim().to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on")
}

/// Any word of a text: an argument may be a whole line for a shell.
fn names_us(text: &str) -> bool {
    let separators =
        |char: char| char.is_whitespace() || matches!(char, '\'' | '"' | ';' | '&' | '|' | '(' | ')' | '=');
    text.split(separators).any(|word| is_ours(word.rsplit('/').next().unwrap_or_default()))
}

/// Also with a version behind it, as package runners take it, or with the ending of a program.
fn is_ours(word: &str) -> bool {
    let word = word.split('@').next().unwrap_or_default();
    let word = word.strip_suffix(".exe").unwrap_or(word);
    word.eq_ignore_ascii_case(OURS)
}
