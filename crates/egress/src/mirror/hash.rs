//! Hashes of package files, as the index of a registry lists them. The cache stores a file under its hash.

use std::fmt;

use base64::Engine as _;
use serde::{Deserialize, Serialize};
use sha1::Sha1;
use sha2::{Digest as _, Sha256, Sha384, Sha512};

/// A hash algorithm for files. The variants are in order of strength, the weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Algorithm {
    /// Only for npm packages without `integrity`; npm itself uses it for these too.
    Sha1,
    Sha256,
    Sha384,
    Sha512,
}

impl Algorithm {
    pub(crate) const ALL: [Self; 4] = [Self::Sha1, Self::Sha256, Self::Sha384, Self::Sha512];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        }
    }

    fn hex_length(self) -> usize {
        match self {
            Self::Sha1 => 40,
            Self::Sha256 => 64,
            Self::Sha384 => 96,
            Self::Sha512 => 128,
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }
}

/// The expected hash of a file, in lower-case hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct FileHash {
    algorithm: Algorithm,
    hex: String,
}

impl FileHash {
    pub(crate) fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    pub(crate) fn hex(&self) -> &str {
        &self.hex
    }

    /// Parses a hash in hexadecimal, of the algorithm with this name.
    pub(crate) fn parse(algorithm: &str, hex: &str) -> Option<Self> {
        let algorithm = Algorithm::named(algorithm)?;
        let is_valid = hex.len() == algorithm.hex_length() && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_valid.then(|| Self { algorithm, hex: hex.to_ascii_lowercase() })
    }

    /// Parses the hash in the URL path of a file. The length of the hash determines the algorithm.
    pub(crate) fn from_path(hex: &str) -> Option<Self> {
        let algorithm = Algorithm::ALL.into_iter().find(|algorithm| algorithm.hex_length() == hex.len())?;
        Self::parse(algorithm.name(), hex)
    }

    /// Returns the strongest hash in the value of `integrity` (Subresource Integrity), such as `sha512-BASE64`.
    pub(crate) fn from_integrity(text: &str) -> Option<Self> {
        let parse = |part: &str| {
            let (algorithm, encoded) = part.split('?').next()?.split_once('-')?;
            let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).ok()?;
            Self::parse(algorithm, &hex(&bytes))
        };
        text.split_ascii_whitespace().filter_map(parse).max_by_key(|hash| hash.algorithm)
    }
}

impl fmt::Display for FileHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.algorithm.name(), self.hex)
    }
}

/// Computes the hash of a file while it is downloaded.
pub(crate) enum Hasher {
    Sha1(Sha1),
    Sha256(Sha256),
    Sha384(Sha384),
    Sha512(Sha512),
}

impl Hasher {
    pub(crate) fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Sha1 => Self::Sha1(Sha1::new()),
            Algorithm::Sha256 => Self::Sha256(Sha256::new()),
            Algorithm::Sha384 => Self::Sha384(Sha384::new()),
            Algorithm::Sha512 => Self::Sha512(Sha512::new()),
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha1(hasher) => hasher.update(bytes),
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha384(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    /// Returns whether the bytes have the expected hash.
    pub(crate) fn matches(self, expected: &FileHash) -> bool {
        let found = match self {
            Self::Sha1(hasher) => hex(&hasher.finalize()),
            Self::Sha256(hasher) => hex(&hasher.finalize()),
            Self::Sha384(hasher) => hex(&hasher.finalize()),
            Self::Sha512(hasher) => hex(&hasher.finalize()),
        };
        found == expected.hex
    }
}

/// Encodes bytes as lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|nibble| char::from(DIGITS[usize::from(nibble)])).collect()
}

/// Returns the SHA-256 of a list of byte strings. It is used as a key of the cache, and to identify a document.
pub(crate) fn key(parts: &[impl AsRef<[u8]>]) -> String {
    let mut hasher = Sha256::new();
    for part in parts.iter().map(AsRef::as_ref) {
        // With the lengths, lists that differ only in where one part ends have different hashes.
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hex(&hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strongest_hash_of_integrity_is_used() {
        let sha1 = "sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk=";
        let sha512 = "sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg==";
        let hash = FileHash::from_integrity(&format!("{sha1} {sha512} md5-AAAA")).unwrap();
        assert_eq!(hash.algorithm(), Algorithm::Sha512);
        assert!(Hasher::new(Algorithm::Sha512).matches(&hash), "the hash of nothing");
        assert_eq!(FileHash::from_integrity(sha1).unwrap().hex(), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
        for text in ["", "sha512-", "sha512-AAAA", "md5-AAAA", "sha512"] {
            assert_eq!(FileHash::from_integrity(text), None, "{text:?}");
        }
    }

    #[test]
    fn hashes_have_the_length_of_their_algorithm() {
        let hex = "A".repeat(64);
        assert_eq!(FileHash::parse("sha256", &hex).unwrap(), FileHash::from_path(&hex.to_lowercase()).unwrap());
        assert_eq!(FileHash::parse("sha512", &hex), None);
        assert_eq!(FileHash::parse("md5", &"a".repeat(32)), None);
        assert_eq!(FileHash::from_path("../../../../etc/passwd"), None);
    }
}
