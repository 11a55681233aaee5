//! Expands `${VAR}`, `${env:VAR}` and `${VAR:-default}` in an entry when a server starts.
//!
//! Expanded entries are never stored, and errors contain no values, because values may be secrets.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::parse::check_url;
use crate::{RemoteSettings, ServerEntry, StdioSettings, Transport};

/// The reason why an entry cannot be expanded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    #[error("environment variable {variable} is not set; `{key}` of server `{server}` needs it")]
    MissingVariable { server: String, key: String, variable: String },
    #[error("`{key}` of server `{server}` contains `${{{inner}}}`, which is not a variable reference")]
    InvalidReference { server: String, key: String, inner: String },
    #[error("`{key}` of server `{server}` {problem} after its variables are expanded")]
    InvalidValue { server: String, key: String, problem: String },
}

impl ExpandError {
    /// Returns hints on what to change.
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::MissingVariable { variable, .. } => vec![format!(
                "set {variable} in the environment of ringfence, or write ${{{variable}:-DEFAULT}} in the entry"
            )],
            Self::InvalidReference { .. } => vec!["write ${NAME}, ${env:NAME} or ${NAME:-DEFAULT}".into()],
            Self::InvalidValue { key, .. } => vec![format!("check the values of the variables in `{key}`")],
        }
    }
}

/// Replaces every variable reference in an entry by its value. Names of variables and headers are not expanded.
pub fn expand(entry: &ServerEntry, lookup: &dyn Fn(&str) -> Option<String>) -> Result<ServerEntry, ExpandError> {
    let expander = Expander { server: &entry.name, lookup };
    let transport = match &entry.transport {
        Transport::Stdio(settings) => Transport::Stdio(Box::new(expander.stdio(settings)?)),
        Transport::Http(settings) => Transport::Http(expander.remote(settings, &["http", "https"])?),
        Transport::Sse(settings) => Transport::Sse(expander.remote(settings, &["http", "https"])?),
        Transport::Remote(settings) => Transport::Remote(expander.remote(settings, &["http", "https"])?),
        Transport::Websocket(settings) => Transport::Websocket(expander.remote(settings, &["ws", "wss"])?),
    };
    Ok(ServerEntry { transport, ..entry.clone() })
}

/// Returns the variables without default that an entry refers to, each once, sorted.
///
/// The result is incomplete if an empty value makes the entry invalid, such as `${HOST}` for the host of a URL.
pub fn required_variables(entry: &ServerEntry) -> Vec<String> {
    let required = RefCell::new(BTreeSet::new());
    // Each round reports the first missing variable and gives it an empty value for the next round.
    loop {
        let lookup = |name: &str| required.borrow().contains(name).then(String::new);
        match expand(entry, &lookup) {
            Err(ExpandError::MissingVariable { variable, .. }) => required.borrow_mut().insert(variable),
            Ok(_) | Err(_) => break,
        };
    }
    required.into_inner().into_iter().collect()
}

struct Expander<'a> {
    server: &'a str,
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl Expander<'_> {
    fn stdio(&self, settings: &StdioSettings) -> Result<StdioSettings, ExpandError> {
        let mut expanded = settings.clone();
        expanded.command = self.string("command", &settings.command)?;
        expanded.args = settings.args.iter().map(|arg| self.string("args", arg)).collect::<Result<_, _>>()?;
        expanded.env = self.table("env", &settings.env)?;
        expanded.cwd = self.path("cwd", settings.cwd.as_deref())?;
        let sandbox = &settings.sandbox_settings;
        expanded.sandbox_settings.image = self.path("box.image", sandbox.image.as_deref())?;
        expanded.sandbox_settings.host_path = self.path("box.host_path", sandbox.host_path.as_deref())?;
        expanded.sandbox_settings.env = self.table("box.env", &sandbox.env)?;
        Ok(expanded)
    }

    fn remote(&self, settings: &RemoteSettings, schemes: &[&str]) -> Result<RemoteSettings, ExpandError> {
        let mut expanded = settings.clone();
        expanded.url = self.string("url", &settings.url)?;
        check_url(&expanded.url, schemes).map_err(|problem| self.invalid("url", problem))?;
        expanded.headers = self.table("headers", &settings.headers)?;
        for (name, value) in &expanded.headers {
            if value.chars().any(|char| char.is_control() && char != '\t') {
                return Err(self.invalid(&format!("headers.{name}"), "contains a control character".into()));
            }
        }
        Ok(expanded)
    }

    fn table(&self, key: &str, table: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, ExpandError> {
        let expand =
            |(name, value): (&String, &String)| Ok((name.clone(), self.string(&format!("{key}.{name}"), value)?));
        table.iter().map(expand).collect()
    }

    /// Expands a path, including a leading `~`, which a shell would have expanded.
    fn path(&self, key: &str, path: Option<&Path>) -> Result<Option<PathBuf>, ExpandError> {
        let Some(path) = path else { return Ok(None) };
        let text = self.string(key, &path.to_string_lossy())?;
        let text = match text.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/')) {
            Some(rest) => self.value(key, "HOME")? + rest,
            None => text,
        };
        if !text.starts_with('/') {
            return Err(self.invalid(key, "is not an absolute path".into()));
        }
        Ok(Some(text.into()))
    }

    /// Expands the references in a string, once: references in a value are not expanded again.
    fn string(&self, key: &str, text: &str) -> Result<String, ExpandError> {
        let mut expanded = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            // Without `}` it is not a reference. An argument may be a shell script that contains `${`.
            let Some((inner, after)) = after.split_once('}') else { break };
            expanded.push_str(before);
            expanded.push_str(&self.reference(key, inner)?);
            rest = after;
        }
        expanded.push_str(rest);
        if expanded.contains('\0') {
            return Err(self.invalid(key, "contains a NUL byte".into()));
        }
        Ok(expanded)
    }

    /// Returns the value of a reference, given the text between `${` and `}`.
    fn reference(&self, key: &str, inner: &str) -> Result<String, ExpandError> {
        let (name, default) = match inner.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inner, None),
        };
        let name = name.strip_prefix("env:").unwrap_or(name);
        let is_name = |text: &str| {
            text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
                && text.bytes().next().is_some_and(|first| !first.is_ascii_digit())
        };
        if !is_name(name) {
            let (server, key, inner) = (self.server.into(), key.into(), inner.escape_debug().to_string());
            return Err(ExpandError::InvalidReference { server, key, inner });
        }
        match default {
            // As in a shell, the default also replaces an empty value.
            Some(default) => {
                let value = (self.lookup)(name).filter(|value| !value.is_empty());
                Ok(value.unwrap_or_else(|| default.to_owned()))
            }
            None => self.value(key, name),
        }
    }

    fn value(&self, key: &str, variable: &str) -> Result<String, ExpandError> {
        (self.lookup)(variable).ok_or_else(|| ExpandError::MissingVariable {
            server: self.server.into(),
            key: key.into(),
            variable: variable.into(),
        })
    }

    fn invalid(&self, key: &str, problem: String) -> ExpandError {
        ExpandError::InvalidValue { server: self.server.into(), key: key.into(), problem }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{entry_from_json, entry_to_json};

    fn expanded(entry: &Value) -> Result<Value, String> {
        let entry = entry_from_json("x", entry).unwrap().0;
        let lookup = |name: &str| match name {
            "HOME" => Some("/home/me".to_owned()),
            "TOKEN" => Some("t${HOME}".to_owned()),
            "EMPTY" => Some(String::new()),
            "NEWLINE" => Some("a\nb".to_owned()),
            _ => None,
        };
        expand(&entry, &lookup).map(|entry| entry_to_json(&entry)).map_err(|error| {
            assert!(!error.hints().is_empty());
            error.to_string()
        })
    }

    #[test]
    fn variables_are_expanded_once_in_all_strings() {
        let entry = json!({
            "command": "${HOME}/bin/x",
            "args": ["--token=${env:TOKEN}", "${EMPTY:-d}${NONE:-}", "$HOME", "${unclosed", "~"],
            "env": {"A": "${TOKEN}-${TOKEN}", "B": "${EMPTY}"},
            "cwd": "~/work",
            "box": {"host_path": "${HOME}/p", "image": "~", "env": {"C": "${HOME}"}},
        });
        let expected = json!({
            "mode": "stdio",
            "command": "/home/me/bin/x",
            "args": ["--token=t${HOME}", "d", "$HOME", "${unclosed", "~"],
            "env": {"A": "t${HOME}-t${HOME}", "B": ""},
            "cwd": "/home/me/work",
            "box": {"image": "/home/me", "host_path": "/home/me/p", "env": {"C": "/home/me"}},
        });
        assert_eq!(expanded(&entry), Ok(expected));
    }

    #[test]
    fn expand_errors_name_server_and_key() {
        let errors = [
            json!({"command": "x", "env": {"A": "${NONE}"}}),
            json!({"command": "x", "args": ["${input:token}"]}),
            json!({"command": "x", "args": ["${}"]}),
            json!({"url": "${NONE}/mcp"}),
            json!({"url": "${HOME}/mcp"}),
            json!({"url": "https://h", "headers": {"Authorization": "Bearer ${NONE}"}}),
            json!({"url": "https://h", "headers": {"X": "${NEWLINE}"}}),
            json!({"command": "x", "cwd": "${NONE:-here}"}),
        ]
        .map(|entry| expanded(&entry).unwrap_err());
        insta::assert_snapshot!(errors.join("\n"));
    }

    #[test]
    fn required_variables_have_no_default() {
        let entry = json!({"command": "${A}", "args": ["${B:-x}", "${env:C}${A}"], "cwd": "~/x"});
        assert_eq!(required_variables(&entry_from_json("x", &entry).unwrap().0), ["A", "C", "HOME"]);
    }
}
