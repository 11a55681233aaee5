//! `${VAR}`, `${env:VAR}` and `${VAR:-default}` in an entry, replaced when a server starts and never stored.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::parse::check_url;
use super::{Reach, RemoteSettings, ServerEntry, StdioSettings};

/// Why an entry cannot be expanded. Values are not in it: they may be secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    #[error("the variable {variable} is not set; {key} of server `{server}` needs it")]
    Missing { server: String, key: String, variable: String },
    #[error("{key} of server `{server}` has `${{{inner}}}`, which is no variable")]
    NoVariable { server: String, key: String, inner: String },
    #[error("{key} of server `{server}` cannot be used once its variables are in: {problem}")]
    Unusable { server: String, key: String, problem: String },
}

impl ExpandError {
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::Missing { variable, .. } => vec![format!(
                "set {variable} where ringfence is started, or write ${{{variable}:-DEFAULT}} in the entry"
            )],
            Self::NoVariable { .. } => vec!["write ${NAME}, ${env:NAME} or ${NAME:-DEFAULT}".into()],
            Self::Unusable { .. } => vec!["check the values of the variables in it".into()],
        }
    }
}

/// The entry with every variable in it replaced by its value. Names of variables and headers stay as they are.
pub fn expand(entry: &ServerEntry, lookup: &dyn Fn(&str) -> Option<String>) -> Result<ServerEntry, ExpandError> {
    let expander = Expander { server: &entry.name, lookup };
    let reach = match &entry.reach {
        Reach::Stdio(settings) => Reach::Stdio(expander.stdio(settings)?),
        Reach::Http(settings) => Reach::Http(expander.remote(settings, &["http", "https"])?),
        Reach::Sse(settings) => Reach::Sse(expander.remote(settings, &["http", "https"])?),
        Reach::Remote(settings) => Reach::Remote(expander.remote(settings, &["http", "https"])?),
        Reach::Websocket(settings) => Reach::Websocket(expander.remote(settings, &["ws", "wss"])?),
    };
    Ok(ServerEntry { reach, ..entry.clone() })
}

/// The variables that an entry needs and that have no default, each once.
pub fn needed_variables(entry: &ServerEntry) -> Vec<String> {
    let needed = std::cell::RefCell::new(std::collections::BTreeSet::new());
    // Nobody has a value, so only what has no default is asked for in vain; asked for one by one.
    loop {
        let answer = |name: &str| needed.borrow().contains(name).then(String::new);
        match expand(entry, &answer) {
            Err(ExpandError::Missing { variable, .. }) => needed.borrow_mut().insert(variable),
            Ok(_) | Err(_) => break,
        };
    }
    needed.into_inner().into_iter().collect()
}

struct Expander<'a> {
    server: &'a str,
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl Expander<'_> {
    fn stdio(&self, settings: &StdioSettings) -> Result<StdioSettings, ExpandError> {
        let mut expanded = settings.clone();
        expanded.command = self.text("command", &settings.command)?;
        expanded.args = settings.args.iter().map(|arg| self.text("args", arg)).collect::<Result<_, _>>()?;
        expanded.env = self.table("env", &settings.env)?;
        expanded.cwd = self.path("cwd", settings.cwd.as_deref())?;
        let walls = &settings.sandbox_settings;
        expanded.sandbox_settings.image = self.path("box.image", walls.image.as_deref())?;
        expanded.sandbox_settings.host_path = self.path("box.host_path", walls.host_path.as_deref())?;
        expanded.sandbox_settings.env = self.table("box.env", &walls.env)?;
        Ok(expanded)
    }

    fn remote(&self, settings: &RemoteSettings, schemes: &[&str]) -> Result<RemoteSettings, ExpandError> {
        let mut expanded = settings.clone();
        expanded.url = self.text("url", &settings.url)?;
        check_url(&expanded.url, schemes).map_err(|problem| self.unusable("url", problem))?;
        expanded.headers = self.table("headers", &settings.headers)?;
        for (name, value) in &expanded.headers {
            if value.chars().any(|char| char.is_control() && char != '\t') {
                return Err(self.unusable(&format!("headers.{name}"), "it has a control character".into()));
            }
        }
        Ok(expanded)
    }

    fn table(&self, key: &str, table: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, ExpandError> {
        let expand =
            |(name, value): (&String, &String)| Ok((name.clone(), self.text(&format!("{key}.{name}"), value)?));
        table.iter().map(expand).collect()
    }

    /// Also `~`, which a shell would have expanded.
    fn path(&self, key: &str, path: Option<&Path>) -> Result<Option<PathBuf>, ExpandError> {
        let Some(path) = path else { return Ok(None) };
        let text = self.text(key, &path.to_string_lossy())?;
        let text = match text.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/')) {
            Some(rest) => self.value(key, "HOME")? + rest,
            None => text,
        };
        if !text.starts_with('/') {
            return Err(self.unusable(key, "it is not an absolute path".into()));
        }
        Ok(Some(text.into()))
    }

    /// One pass: what a value holds is not expanded again.
    fn text(&self, key: &str, text: &str) -> Result<String, ExpandError> {
        let mut expanded = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            // Without an end it is no variable; a shell script in an argument may well have such a thing.
            let Some((inner, after)) = after.split_once('}') else { break };
            expanded.push_str(before);
            expanded.push_str(&self.inner(key, inner)?);
            rest = after;
        }
        expanded.push_str(rest);
        if expanded.contains('\0') {
            return Err(self.unusable(key, "it holds a NUL byte".into()));
        }
        Ok(expanded)
    }

    fn inner(&self, key: &str, inner: &str) -> Result<String, ExpandError> {
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
            return Err(ExpandError::NoVariable { server, key, inner });
        }
        match default {
            // As in a shell: `:-` is also for one that is set to nothing.
            Some(default) => {
                let value = (self.lookup)(name).filter(|value| !value.is_empty());
                Ok(value.unwrap_or_else(|| default.to_owned()))
            }
            None => self.value(key, name),
        }
    }

    fn value(&self, key: &str, variable: &str) -> Result<String, ExpandError> {
        (self.lookup)(variable).ok_or_else(|| ExpandError::Missing {
            server: self.server.into(),
            key: key.into(),
            variable: variable.into(),
        })
    }

    fn unusable(&self, key: &str, problem: String) -> ExpandError {
        ExpandError::Unusable { server: self.server.into(), key: key.into(), problem }
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
    fn variables_are_replaced_once_wherever_a_text_may_be() {
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
    fn what_is_missing_or_makes_no_sense_is_named() {
        let said = [
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
        insta::assert_snapshot!(said.join("\n"));
    }

    #[test]
    fn the_variables_that_are_needed_are_known_before() {
        let entry = json!({"command": "${A}", "args": ["${B:-x}", "${env:C}${A}"], "cwd": "~/x"});
        assert_eq!(needed_variables(&entry_from_json("x", &entry).unwrap().0), ["A", "C", "HOME"]);
    }
}
