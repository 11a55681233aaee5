//! The connection of a request: what a server may bind state to that no request names.
//!
//! A request of the modern era over HTTP, or one without a handshake, belongs to no connection unless its URL has a name.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The parameter of a URL with the name of a connection: `/mcp?session=NAME`.
const NAME_PARAMETER: &str = "session";

/// Maximum length of a name.
const MAX_NAME_BYTES: usize = 64;

/// The connection that a request belongs to. It is valid only together with the principal of the request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Connection {
    /// Standard input and output of this process.
    Stdio,
    /// The MCP session of a client of the legacy era, by its `Mcp-Session-Id`.
    McpSession(Arc<str>),
    /// A name that the client or its user has chosen.
    Named(ConnectionName),
}

/// The name of a connection: 1 to 64 letters of ASCII, digits, `-`, `_` and `.`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConnectionName(Arc<str>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    #[error("the session name has characters other than letters, digits, `-`, `_` and `.`")]
    Characters,
    #[error("the session name does not have 1 to {MAX_NAME_BYTES} characters")]
    Length,
    #[error("the URL has more than one session name")]
    Duplicate,
}

impl ConnectionName {
    /// Returns the name in the query of a URL.
    pub fn in_query(query: &str) -> Result<Option<Self>, InvalidName> {
        let mut names = query.split('&').filter_map(|pair| match pair.split_once('=').unwrap_or((pair, "")) {
            (NAME_PARAMETER, name) => Some(name),
            _ => None,
        });
        let name = names.next().map(str::parse).transpose()?;
        if names.next().is_some() {
            return Err(InvalidName::Duplicate);
        }
        Ok(name)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ConnectionName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        if !(1..=MAX_NAME_BYTES).contains(&text.len()) {
            return Err(InvalidName::Length);
        }
        // No character of a name is written differently in a URL, so an encoded one is an error.
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if text.bytes().all(is_allowed) { Ok(Self(text.into())) } else { Err(InvalidName::Characters) }
    }
}

impl fmt::Display for ConnectionName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_found_in_query() {
        let name = |query: &str| ConnectionName::in_query(query).map(|name| name.map(|name| name.to_string()));
        for query in ["", "x=1", "sessions=a", "session-id=a", "a=session", "&&", "%73ession=a"] {
            assert_eq!(name(query), Ok(None), "{query}");
        }
        for query in ["session=my-Agent_1.0", "x=1&session=my-Agent_1.0&y", "session=my-Agent_1.0&"] {
            assert_eq!(name(query), Ok(Some("my-Agent_1.0".into())), "{query}");
        }
    }

    #[test]
    fn hostile_names_are_refused() {
        let long = format!("session={}", "x".repeat(MAX_NAME_BYTES + 1));
        for (query, error) in [
            ("session", InvalidName::Length),
            ("session=", InvalidName::Length),
            (long.as_str(), InvalidName::Length),
            ("session=a&session=a", InvalidName::Duplicate),
            ("session=a&session", InvalidName::Duplicate),
            ("session=a%00b", InvalidName::Characters),
            ("session=a%2Fb", InvalidName::Characters),
            ("session=../a", InvalidName::Characters),
            ("session=a+b", InvalidName::Characters),
            ("session=a=b", InvalidName::Characters),
            ("session=ä", InvalidName::Characters),
        ] {
            assert_eq!(ConnectionName::in_query(query), Err(error), "{query}");
        }
    }
}
