//! Errors and warnings about an entry, with hints on what to write instead.

use std::fmt;

use serde_json::Value;

use crate::name::MAX_NAME_CHARS;

/// The reason why an entry is invalid.
///
/// Messages do not repeat the name of the server, which callers put before them. Values are shown only where they cannot
/// be secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    #[error("invalid server name `{}`: {reason}", name.escape_debug())]
    Name { name: String, reason: &'static str },
    #[error("entry must be a table, not {found}")]
    NotAnObject { found: &'static str },
    #[error("entry has neither `command` nor `url`")]
    NoCommandOrUrl,
    #[error("entry has both `command` and `url`")]
    CommandAndUrl,
    #[error("unknown mode `{mode}`")]
    UnknownMode { mode: String },
    #[error("mode {mode} needs `{key}`, which is missing")]
    MissingKey { mode: &'static str, key: &'static str },
    #[error("`{key}` must be {expected}, not {found}")]
    WrongType { key: String, found: &'static str, expected: ExpectedType },
    /// `problem` is a predicate: "is empty".
    #[error("`{key}` {problem}")]
    InvalidValue { key: String, problem: String, hint: String },
}

impl EntryError {
    /// Returns hints on what to change.
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Name { .. } => {
                format!("use 1 to {MAX_NAME_CHARS} printable characters, without `/` and `__`, not ending in `_`")
            }
            Self::NotAnObject { .. } => {
                "write {\"command\": \"npx\", \"args\": [\"-y\", \"PACKAGE\"]} or {\"url\": \"https://…\"}".into()
            }
            Self::NoCommandOrUrl => {
                "set `command` (and `args`) to start a program, or `url` to connect to a remote server".into()
            }
            Self::CommandAndUrl => {
                "remove one of them, or set `mode`: stdio uses the command, remote uses the url".into()
            }
            Self::UnknownMode { .. } => "use stdio, http, sse, websocket or remote".into(),
            Self::MissingKey { key, .. } => format!("add `{key}`, or omit the mode to have it detected"),
            Self::WrongType { expected, .. } => expected.hint().into(),
            Self::InvalidValue { hint, .. } => hint.clone(),
        };
        vec![hint]
    }
}

/// The type that a key must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedType {
    String,
    Boolean,
    Number,
    Integer,
    OnOrOff,
    StringArray,
    StringTable,
    Table,
}

impl ExpectedType {
    fn hint(self) -> &'static str {
        match self {
            Self::String => "write a string in double quotes",
            Self::Boolean => "write true or false, without quotes",
            Self::Number => "write a number, without quotes",
            Self::Integer => "write an integer, without quotes",
            Self::OnOrOff => "write \"on\" or \"off\"",
            Self::StringArray => "write an array of strings, such as [\"a\", \"b\"]",
            Self::StringTable => "write a table of strings, such as {\"NAME\": \"value\"}",
            Self::Table => "write a table, such as {\"memory_mb\": 512}",
        }
    }
}

impl fmt::Display for ExpectedType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::String => "a string",
            Self::Boolean => "true or false",
            Self::Number => "a number",
            Self::Integer => "an integer",
            Self::OnOrOff => "on or off",
            Self::StringArray => "an array of strings",
            Self::StringTable => "a table of strings",
            Self::Table => "a table",
        })
    }
}

/// Returns the type of a value with its article.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "a table",
    }
}

/// A problem of an entry that does not make it invalid, such as an ignored key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning(pub String);

impl fmt::Display for Warning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}
