//! The definition of a secret: its value, and where it may be used.

use std::collections::BTreeSet;
use std::fmt;

use zeroize::Zeroizing;

use crate::rules::{RequestScope, Rule};

/// Shorter values would be found in unrelated data.
const MIN_VALUE_BYTES: usize = 8;
/// The value must fit into the head of a request.
const MAX_VALUE_BYTES: usize = 8 * 1024;

/// The value of a secret. It is overwritten when it is dropped, and `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(Zeroizing<String>);

/// Reason why a text cannot be the value of a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretValueError {
    #[error("the value is empty")]
    Empty,
    #[error("the value is shorter than {MIN_VALUE_BYTES} bytes, so that other data could be mistaken for it")]
    TooShort,
    #[error("the value is longer than {MAX_VALUE_BYTES} bytes")]
    TooLong,
    #[error("the value contains a line break or another control character, which no HTTP field may contain")]
    ControlCharacter,
}

impl SecretValue {
    /// Checks a value, of which the caller should overwrite its copy. White space around it, such as the line break at the end of a file, is removed.
    pub fn new(text: &str) -> Result<Self, SecretValueError> {
        let value = text.trim();
        if value.is_empty() {
            return Err(SecretValueError::Empty);
        }
        if value.len() < MIN_VALUE_BYTES {
            return Err(SecretValueError::TooShort);
        }
        if value.len() > MAX_VALUE_BYTES {
            return Err(SecretValueError::TooLong);
        }
        if value.chars().any(char::is_control) {
            return Err(SecretValueError::ControlCharacter);
        }
        Ok(Self(Zeroizing::new(value.to_owned())))
    }

    /// Returns the value itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue(hidden)")
    }
}

/// A place in a request where the proxy exchanges a placeholder for the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Location {
    /// The value of any header field, such as `Authorization: Bearer X`.
    Header,
    /// The query of the URL.
    Query,
    /// The user name or password of `Authorization: Basic`.
    Basic,
}

impl Location {
    pub const ALL: [Self; 3] = [Self::Header, Self::Query, Self::Basic];

    pub fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Query => "query",
            Self::Basic => "basic",
        }
    }
}

/// A secret with its value, and where it may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretDefinition {
    pub name: String,
    /// The variable in which the guest finds the placeholder.
    pub variable: String,
    pub value: SecretValue,
    /// The hosts that receive the value. Only a host with `+private` may receive it without TLS, at a private address.
    pub hosts: Vec<Rule>,
    /// The requests that may contain the value.
    pub requests: RequestScope,
    pub locations: BTreeSet<Location>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked_and_hidden() {
        let value = SecretValue::new;
        let good = value(" 0123456789\n").unwrap();
        assert_eq!(good.expose(), "0123456789");
        assert!(!format!("{good:?}").contains("0123"));
        assert_eq!(value(" \n"), Err(SecretValueError::Empty));
        assert_eq!(value("1234567"), Err(SecretValueError::TooShort));
        assert_eq!(value("12345678\n12345678"), Err(SecretValueError::ControlCharacter));
        assert_eq!(value(&"x".repeat(8193)), Err(SecretValueError::TooLong));
    }
}
