//! Prints a configuration: every value with its origin, without secrets.

use std::fmt::Write as _;

use serde_json::json;

use super::Configuration;
use crate::origin::Origin;
use crate::sources::KEYS;
use ringfence_entries::{redact, redact_url};

const SET: &str = "(set)";
const NOT_SET: &str = "(not set)";
const TOKENS: &str = "server.tokens.";

struct Line {
    key: String,
    /// `None` if no value is set and there is no default.
    value: Option<toml::Value>,
    origin: Origin,
}

impl Configuration {
    /// Returns one line `key = value  # origin` for each key. The text is valid TOML except for keys that are not set;
    /// secrets are replaced.
    pub fn show(&self) -> String {
        let mut text = match &self.file {
            Some(path) => format!("# {}\n", path.display()),
            None => "# no configuration file\n".to_owned(),
        };
        for Line { key, value, origin } in self.lines() {
            let value = value.map_or_else(|| NOT_SET.to_owned(), |value| value.to_string());
            let _ = writeln!(text, "{key} = {value}  # {origin}");
        }
        text
    }

    pub fn show_json(&self) -> serde_json::Value {
        let values: serde_json::Map<String, serde_json::Value> = self
            .lines()
            .into_iter()
            .map(|Line { key, value, origin }| {
                let from = match origin {
                    Origin::Default => json!({"from": "default"}),
                    Origin::File { path, line } => json!({"from": "file", "path": path, "line": line}),
                    Origin::Variable(name) => json!({"from": "variable", "name": name}),
                    Origin::Flag(name) => json!({"from": "flag", "name": name}),
                };
                (key, json!({"value": value, "origin": from}))
            })
            .collect();
        json!({"file": self.file, "values": values})
    }

    fn lines(&self) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        for (key, found) in self.values.iter() {
            // The location of a secret is not shown either.
            let token =
                key.strip_prefix(TOKENS).and_then(|rest| rest.rsplit_once('.')).map(|(name, _)| name.to_owned());
            let (key, value) = if let Some(name) = token {
                (format!("{TOKENS}{name}"), if self.has_secret(&name) { SET } else { NOT_SET }.into())
            } else {
                let value = redacted(&key, &found.value);
                (key, value)
            };
            lines.push(Line { key, value: Some(value), origin: found.origin.clone() });
        }
        for key in KEYS {
            let is_table = key.name.starts_with(TOKENS) || key.name == "sessions.pool";
            if !is_table && !lines.iter().any(|line| line.key == key.name) {
                let value = (key.name == "sessions.state_dir").then(|| self.state_directory().ok()).flatten();
                let value = value.map(|path| path.to_string_lossy().into_owned().into());
                lines.push(Line { key: key.name.into(), value, origin: Origin::Default });
            }
        }
        lines.sort_by(|a, b| a.key.cmp(&b.key));
        lines
    }
}

/// Returns a value for output. Variables, headers and URLs of servers may contain secrets.
fn redacted(key: &str, value: &toml::Value) -> toml::Value {
    // The location of a value may be secret too: a command has arguments.
    let is_location = ["env", "file", "command"].contains(&key.rsplit('.').next().unwrap_or_default());
    if key.starts_with("secrets.") && is_location {
        return SET.into();
    }
    let (true, Some(text)) = (key.starts_with("servers."), value.as_str()) else { return value.clone() };
    if key.rsplit('.').next() == Some("url") {
        return redact_url(text).into();
    }
    let is_secret = [".env.", ".headers."].iter().any(|part| key.contains(part));
    if is_secret { redact(text).into() } else { value.clone() }
}
