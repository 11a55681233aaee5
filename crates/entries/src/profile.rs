//! What is offered at one endpoint: which servers, which of their tools, under which names.

use schemars::JsonSchema;
use serde::Deserialize;

/// How the tools of servers reach an agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Each as a tool.
    #[default]
    Direct,
    /// As functions of code that the agent writes: it is offered one tool that runs it.
    Code,
}

/// A named selection. The one without a name offers all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    pub mode: Mode,
    /// By name or uuid; nothing means all.
    pub servers: Option<Vec<String>>,
    /// Tools that are offered, by their own name or as `server__tool`, with `*` for anything; none means all.
    pub allow: Vec<String>,
    /// Tools that are not, whatever else is said.
    pub deny: Vec<String>,
    /// Whether names begin with that of their server.
    pub prefix: bool,
    /// Whether sandbox sessions are offered beside the servers.
    pub own_tools: bool,
}

impl Default for Profile {
    fn default() -> Self {
        Self { mode: Mode::Direct, servers: None, allow: Vec::new(), deny: Vec::new(), prefix: true, own_tools: true }
    }
}

impl Profile {
    pub fn has_server(&self, name: &str, uuid: &str) -> bool {
        self.servers.as_ref().is_none_or(|servers| servers.iter().any(|bound| bound == name || bound == uuid))
    }

    pub fn has_tool(&self, server: &str, tool: &str) -> bool {
        let full = format!("{server}{SEPARATOR}{tool}");
        let is_named =
            |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, &full) || matches(pattern, tool));
        (self.allow.is_empty() || is_named(&self.allow)) && !is_named(&self.deny)
    }

    /// Whether code may call all of its servers, without naming them: they have been named here.
    pub fn binds_for_code(&self) -> bool {
        self.mode == Mode::Code && self.servers.is_some()
    }

    /// The one server that is offered as if it were reached directly, if that is what the profile is for.
    pub fn sole_server(&self) -> Option<&str> {
        match self.servers.as_deref() {
            Some([server]) if self.mode == Mode::Direct && !self.prefix && !self.own_tools => Some(server),
            _ => None,
        }
    }
}

/// Between the name of a server and that of its tool.
pub const SEPARATOR: &str = "__";

/// A server's name as it stands in the names of its tools: clients take letters, digits, `_` and `-`.
pub fn alias(server: &str) -> String {
    server.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' }).collect()
}

/// Whether a text is what a pattern with `*` describes.
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
    fn patterns() {
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
    fn a_profile_selects() {
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
    fn one_server_can_be_offered_as_itself() {
        let sole = Profile { servers: Some(vec!["a".into()]), prefix: false, own_tools: false, ..Profile::default() };
        assert_eq!(sole.sole_server(), Some("a"));
        assert_eq!(Profile { own_tools: true, ..sole.clone() }.sole_server(), None);
        assert_eq!(Profile { mode: Mode::Code, ..sole.clone() }.sole_server(), None);
        assert_eq!(Profile { servers: None, ..sole }.sole_server(), None);
    }
}
