//! What is wrong with an entry, and what to write instead.

use serde_json::Value;

use super::super::name::MOST_NAME_CHARACTERS;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    #[error("`{}` cannot be the name of a server: it {why}", name.escape_debug())]
    Name { name: String, why: &'static str },
    #[error("the entry is {found} and not a table")]
    NotATable { found: &'static str },
    #[error("the entry has neither a command nor a url")]
    Nothing,
    #[error("the entry has both a command and a url")]
    Both,
    #[error("unknown mode `{mode}`")]
    UnknownMode { mode: String },
    #[error("the mode is {mode}, and there is no {key}")]
    Lacks { mode: &'static str, key: &'static str },
    #[error("{key} is {found}; it must be {expected}")]
    Kind { key: String, found: &'static str, expected: &'static str },
    #[error("{key}: {problem}")]
    Value { key: String, problem: String, hint: String },
}

impl EntryError {
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Name { .. } => {
                format!("use 1 to {MOST_NAME_CHARACTERS} printable characters, without `/` and `__`, not ending in `_`")
            }
            Self::NotATable { .. } | Self::Nothing => {
                "write {\"command\": \"npx\", \"args\": [\"-y\", \"PACKAGE\"]} or {\"url\": \"https://…\"}".into()
            }
            Self::Both => "keep one; `mode` says which is meant: stdio for the command, remote for the url".into(),
            Self::UnknownMode { .. } => "there are stdio, http, sse, websocket and remote".into(),
            Self::Lacks { key, .. } => format!("give a {key}, or leave the mode out"),
            Self::Kind { .. } => return Vec::new(),
            Self::Value { hint, .. } => hint.clone(),
        };
        vec![hint]
    }
}

/// The kind of a value, as one says it.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a table",
    }
}

/// Something in an entry that was not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning(pub String);

impl std::fmt::Display for Warning {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}
