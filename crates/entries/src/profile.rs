//! Profiles: the servers and tools that one endpoint offers, and the names of the tools.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::name::TOOL_SEPARATOR;

/// The way in which an agent uses the tools of servers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Mode")]
pub enum ProfileMode {
    /// Each tool of a server is offered as a tool.
    #[default]
    Direct,
    /// One tool is offered that runs code, and the code calls the tools of servers as functions.
    Code,
}

/// A selection of servers and tools. The default profile offers all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    pub mode: ProfileMode,
    /// Servers by name or uuid; `None` means all.
    pub servers: Option<Vec<String>>,
    /// Patterns of the tools that are offered, as `tool` or `server__tool`, with `*` for any text; empty means all.
    pub allow: Vec<String>,
    /// Patterns of the tools that are not offered. They take precedence over `allow`.
    pub deny: Vec<String>,
    /// Whether the names of tools start with the name of their server.
    pub prefix: bool,
    /// Whether the tools for sandbox sessions are offered too (`own_tools` in the configuration).
    pub builtin_tools: bool,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            mode: ProfileMode::Direct,
            servers: None,
            allow: Vec::new(),
            deny: Vec::new(),
            prefix: true,
            builtin_tools: true,
        }
    }
}

impl Profile {
    /// Returns whether the profile offers a server.
    pub fn has_server(&self, name: &str, uuid: &str) -> bool {
        self.servers.as_ref().is_none_or(|servers| servers.iter().any(|selected| selected == name || selected == uuid))
    }

    /// Returns whether the profile offers a tool of a server, provided that it offers the server.
    pub fn has_tool(&self, server: &str, tool: &str) -> bool {
        let full = format!("{server}{TOOL_SEPARATOR}{tool}");
        let is_matched =
            |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, &full) || matches(pattern, tool));
        (self.allow.is_empty() || is_matched(&self.allow)) && !is_matched(&self.deny)
    }

    /// Returns whether code may call every server of the profile without naming it for its session first.
    ///
    /// This is the case if the profile itself lists the servers.
    pub fn grants_servers_to_code(&self) -> bool {
        self.mode == ProfileMode::Code && self.servers.is_some()
    }

    /// Returns the server if the profile offers exactly one and nothing else, as if clients connected to it directly.
    pub fn sole_server(&self) -> Option<&str> {
        match self.servers.as_deref() {
            Some([server]) if self.mode == ProfileMode::Direct && !self.prefix && !self.builtin_tools => Some(server),
            _ => None,
        }
    }
}

/// Returns whether a pattern, in which `*` matches any text, matches a whole text.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_matches_any_text() {
        for (pattern, text, expected) in [
            ("read", "read", true),
            ("read", "read_file", false),
            ("read*", "read_file", true),
            ("*file", "read_file", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("*", "", true),
            ("a*a", "a", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn profile_selects_servers_and_tools() {
        let profile = Profile {
            servers: Some(vec!["git".into(), "u-1".into()]),
            allow: vec!["git__*".into(), "now".into()],
            deny: vec!["git__push".into()],
            ..Profile::default()
        };
        assert!(profile.has_server("git", "u-0") && profile.has_server("time", "u-1"));
        assert!(!profile.has_server("other", "u-2"));
        assert!(profile.has_tool("git", "log") && profile.has_tool("time", "now"));
        assert!(!profile.has_tool("git", "push") && !profile.has_tool("time", "zone"));
    }

    #[test]
    fn sole_server_needs_no_prefix_and_no_other_tools() {
        let sole =
            Profile { servers: Some(vec!["a".into()]), prefix: false, builtin_tools: false, ..Profile::default() };
        assert_eq!(sole.sole_server(), Some("a"));
        assert_eq!(Profile { builtin_tools: true, ..sole.clone() }.sole_server(), None);
        assert_eq!(Profile { mode: ProfileMode::Code, ..sole.clone() }.sole_server(), None);
        assert_eq!(Profile { servers: None, ..sole }.sole_server(), None);
    }
}
