//! Principals and session ids: who sends a request, and which session it is for.

use std::fmt;
use std::sync::{Arc, LazyLock};

use serde::{Serialize, Serializer};

/// The caller of a request and owner of its sessions.
///
/// The name is `local` on stdio and on loopback without a token, otherwise the name of the token.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Principal {
    name: Arc<str>,
    visibility: Visibility,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Visibility {
    /// Only objects of the principal itself.
    Own,
    /// The objects of all principals.
    All,
}

impl Principal {
    /// The name of callers without a token.
    pub const LOCAL_NAME: &'static str = "local";

    /// The principal of callers without a token.
    pub fn local() -> Self {
        static NAME: LazyLock<Arc<str>> = LazyLock::new(|| Principal::LOCAL_NAME.into());
        Self::named(Arc::clone(&NAME))
    }

    /// The user who runs the server, and who may therefore see and end every session.
    ///
    /// A token with the name `operator` is a different principal.
    pub fn operator() -> Self {
        Self { name: "operator".into(), visibility: Visibility::All }
    }

    /// The principal of a token.
    pub fn named(name: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), visibility: Visibility::Own }
    }

    /// Returns the same caller in a separate namespace. It is a different principal and sees nothing of the first one.
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

    /// Returns whether this principal may see what belongs to `owner`.
    pub fn can_see(&self, owner: &Self) -> bool {
        self.visibility == Visibility::All || self == owner
    }
}

/// The letters of base32 (RFC 4648) in lower case.
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// The number of base32 letters for 128 bits.
const RANDOM_LETTERS: u32 = 26;

/// The handle of a session. It contains 128 random bits, so it cannot be guessed. Earlier versions created longer ones,
/// with the prefix `session-`, which remain valid.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(Arc<str>);

impl SessionId {
    /// Creates an id with random bits of the kernel (getrandom(2)).
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0; 16];
        let mut filled = 0;
        while filled < bytes.len() {
            filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
        }
        let random = u128::from_ne_bytes(bytes);
        let letter = |position: u32| {
            let value = usize::try_from((random >> (5 * position)) & 31).unwrap_or_default();
            char::from(BASE32[value])
        };
        Ok(Self(format!("s-{}", (0..RANDOM_LETTERS).map(letter).collect::<String>()).into()))
    }

    /// Wraps a text that a caller sent. Whether such a session exists is decided by the lookup.
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

/// The maximum share of a pool for one of several principals: three quarters, and at least one.
pub fn fair_share(total: usize) -> usize {
    (total / 4 * 3 + total % 4 * 3 / 4).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_ids_are_short_and_use_all_of_their_random_bits() {
        let ids: Vec<SessionId> = (0..200).map(|_| SessionId::random().unwrap()).collect();
        for id in &ids {
            let random = id.as_str().strip_prefix("s-").unwrap();
            assert!(random.len() == 26 && random.bytes().all(|byte| BASE32.contains(&byte)), "{id}");
        }
        // Two of the 130 bits of 26 letters are not random: the last letter has three bits.
        for position in 2..28 {
            let letters: std::collections::BTreeSet<u8> =
                ids.iter().map(|id| id.as_str().as_bytes()[position]).collect();
            assert!(letters.len() >= if position == 27 { 8 } else { 24 }, "{position}: {letters:?}");
        }
    }

    #[test]
    fn only_operator_sees_other_principals() {
        let (token, named_operator) = (Principal::named("token"), Principal::named("operator"));
        assert!(token.can_see(&token) && !token.can_see(&named_operator) && !named_operator.can_see(&token));
        assert!(Principal::operator().can_see(&token) && !named_operator.can_see(&Principal::operator()));
    }
}
