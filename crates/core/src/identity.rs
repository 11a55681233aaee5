//! Who asks, and the handle by which a session is asked for.

use std::fmt;
use std::sync::{Arc, LazyLock};

use serde::{Serialize, Serializer};

/// Whose sessions are whose. `local` on stdio and on loopback without a token, else the token's name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Principal {
    name: Arc<str>,
    visibility: Visibility,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Visibility {
    Own,
    All,
}

impl Principal {
    pub fn local() -> Self {
        static NAME: LazyLock<Arc<str>> = LazyLock::new(|| "local".into());
        Self::named(Arc::clone(&NAME))
    }

    /// Whoever runs the server, and so may see and end every session. No token can be this one, whatever its name.
    pub fn operator() -> Self {
        Self { name: "operator".into(), visibility: Visibility::All }
    }

    pub fn named(name: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), visibility: Visibility::Own }
    }

    /// The same caller in a namespace of its own: nothing that it has elsewhere is there.
    #[must_use]
    pub fn in_namespace(self, namespace: &str) -> Self {
        Self { name: format!("{}@{namespace}", self.name).into(), ..self }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn is_operator(&self) -> bool {
        self.visibility == Visibility::All
    }

    /// Whether what belongs to `owner` is there for this one.
    pub fn can_see(&self, owner: &Self) -> bool {
        self.visibility == Visibility::All || self == owner
    }
}

/// A handle that cannot be guessed: 128 random bits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(Arc<str>);

impl SessionId {
    /// Draws a new one from the kernel's random numbers.
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0; 16];
        let mut filled = 0;
        while filled < bytes.len() {
            filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
        }
        Ok(Self(format!("session-{:032x}", u128::from_ne_bytes(bytes)).into()))
    }

    /// Takes what a caller sent; whether it names a session is seen when it is looked up.
    pub fn from_caller(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Serialize for SessionId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_operator_sees_what_is_others() {
        let (one, other) = (Principal::named("one"), Principal::named("operator"));
        assert!(one.can_see(&one) && !one.can_see(&other) && !other.can_see(&one));
        assert!(Principal::operator().can_see(&one) && !other.can_see(&Principal::operator()));
    }
}
