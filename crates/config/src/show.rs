//! A configuration as a person reads it: every value, and where it came from.

use std::fmt::Write as _;

use serde_json::json;

use super::keys::KEYS;
use super::origin::Origin;
use super::resolve::Configuration;
use ringfence_entries::{redact, redact_url};

const SET: &str = "(set)";
const NOT_SET: &str = "(not set)";
const TOKENS: &str = "server.tokens.";

struct Line {
    key: String,
    /// Nothing where no value is given and there is no default.
    value: Option<toml::Value>,
    origin: Origin,
}

impl Configuration {
    /// `key = value  # origin`, a line each: TOML itself but for secrets and what is not set.
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
        for (key, given) in self.values.iter() {
            // Where a secret lies is nobody's business either.
            let token =
                key.strip_prefix(TOKENS).and_then(|rest| rest.rsplit_once('.')).map(|(name, _)| name.to_owned());
            let (key, value) = if let Some(name) = token {
                (format!("{TOKENS}{name}"), if self.has_secret(&name) { SET } else { NOT_SET }.into())
            } else {
                let value = shown(&key, &given.value);
                (key, value)
            };
            lines.push(Line { key, value: Some(value), origin: given.origin.clone() });
        }
        for key in KEYS {
            let is_table = key.name.starts_with(TOKENS) || key.name == "sessions.pool";
            if !is_table && !lines.iter().any(|line| line.key == key.name) {
                let value = (key.name == "sessions.state_dir").then(|| self.state_directory().ok()).flatten();
                let value = value.map(|path| path.to_string_lossy().into_owned().into());
                lines.push(Line { key: key.name.into(), value, origin: Origin::Default });
            }
        }
        lines.sort_by(|one, other| one.key.cmp(&other.key));
        lines
    }
}

/// Variables, headers and URLs of servers may hold secrets.
fn shown(key: &str, value: &toml::Value) -> toml::Value {
    let (true, Some(text)) = (key.starts_with("servers."), value.as_str()) else { return value.clone() };
    if key.rsplit('.').next() == Some("url") {
        return redact_url(text).into();
    }
    let is_secret = [".env.", ".headers."].iter().any(|part| key.contains(part));
    if is_secret { redact(text).into() } else { value.clone() }
}
