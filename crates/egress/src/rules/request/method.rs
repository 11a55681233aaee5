//! HTTP methods in rules.

use std::fmt;
use std::str::FromStr;

/// Reason why a text is not a method.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{method:?} is not an HTTP method")]
pub struct MethodError {
    method: String,
}

/// An HTTP method in upper case. Methods are case-sensitive: a request with `get` does not match `GET`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Method(String);

impl Method {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Method {
    type Err = MethodError;

    fn from_str(text: &str) -> Result<Self, MethodError> {
        let is_method = (1..=32).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        let invalid = || MethodError { method: text.to_owned() };
        // A tunnel inside of an allowed connection could not be checked.
        if !is_method || text.eq_ignore_ascii_case("CONNECT") {
            return Err(invalid());
        }
        Ok(Self(text.to_ascii_uppercase()))
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
