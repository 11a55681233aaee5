//! Who asks, and the handle by which a session is asked for.

use std::fmt;

use serde::Serialize;

/// Whose sessions are whose. `local` on stdio and on loopback without a token, else the token's name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Principal(String);

impl Principal {
    pub fn local() -> Self {
        Self("local".into())
    }

    pub fn named(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    pub fn name(&self) -> &str {
        &self.0
    }
}

/// A handle that cannot be guessed: 128 random bits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct SessionId(String);

impl SessionId {
    /// Draws a new one from the kernel's random numbers.
    pub fn draw() -> std::io::Result<Self> {
        let mut bytes = [0; 16];
        let mut filled = 0;
        while filled < bytes.len() {
            filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
        }
        Ok(Self(format!("session-{:032x}", u128::from_ne_bytes(bytes))))
    }

    /// Takes what a caller sent; whether it names a session is seen when it is looked up.
    pub fn from_caller(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}
