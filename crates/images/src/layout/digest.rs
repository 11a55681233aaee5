//! SHA-256 digests, which are the names of blobs.

use std::fmt::{self, Write as _};
use std::io::{self, Read};

use serde::Deserialize;
use sha2::{Digest as _, Sha256};

/// A digest as 64 hexadecimal digits, which are safe as a file name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Digest(String);

impl Digest {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self::from_hash(Sha256::new_with_prefix(bytes))
    }

    fn from_hash(hash: Sha256) -> Self {
        let mut digits = String::with_capacity(64);
        for byte in hash.finalize() {
            let _ = write!(digits, "{byte:02x}");
        }
        Self(digits)
    }

    pub(crate) fn hexadecimal(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let digits = text.strip_prefix("sha256:").filter(|digits| digits.len() == 64 && digits.bytes().all(is_digit));
        digits.map(|digits| Self(digits.to_owned())).ok_or_else(|| format!("`{text}` is not a SHA-256 digest"))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "sha256:{}", self.0)
    }
}

/// A reader that computes the digest of the bytes it reads.
pub(crate) struct HashingReader<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> HashingReader<R> {
    pub(super) fn new(inner: R) -> Self {
        Self { inner, hash: Sha256::new() }
    }

    /// Reads the remaining bytes; returns the digest of all bytes.
    pub(super) fn finish(mut self) -> io::Result<Digest> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(Digest::from_hash(self.hash))
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.hash.update(&buffer[..length]);
        Ok(length)
    }
}
