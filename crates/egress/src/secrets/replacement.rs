//! Searching for texts, and replacing each by another of the same length.

use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use memchr::memmem;
use zeroize::Zeroizing;

/// A text, and what replaces it.
struct Replacement {
    text: Zeroizing<Vec<u8>>,
    /// Has the same length.
    new: Zeroizing<Vec<u8>>,
    /// The index of the secret to which the text belongs.
    secret: usize,
}

/// Texts with their replacements. `Debug` shows neither.
#[derive(Default)]
pub(crate) struct Replacements(Vec<Replacement>);

impl std::fmt::Debug for Replacements {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Replacements({} texts)", self.0.len())
    }
}

impl Replacements {
    /// Adds a text. `replacement` must have the same length.
    pub(super) fn add(&mut self, secret: usize, text: &[u8], replacement: &[u8]) {
        debug_assert_eq!(text.len(), replacement.len());
        let is_known = self.0.iter().any(|known| known.text.as_slice() == text);
        if !text.is_empty() && text.len() == replacement.len() && text != replacement && !is_known {
            let (text, new) = (Zeroizing::new(text.to_vec()), Zeroizing::new(replacement.to_vec()));
            self.0.push(Replacement { text, new, secret });
        }
    }

    /// Adds a text and the forms in which a response may repeat it: base64, percent-encoding and JSON.
    pub(super) fn add_with_encodings(&mut self, secret: usize, text: &str, replacement: &str) {
        self.add(secret, text.as_bytes(), replacement.as_bytes());
        for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
            for offset in 0..3 {
                let encode = |text: &str| Zeroizing::new(base64_core(&engine, text.as_bytes(), offset));
                self.add(secret, &encode(text), &encode(replacement));
            }
        }
        let upper = percent_encode(text, b"0123456789ABCDEF");
        let lower = percent_encode(text, b"0123456789abcdef");
        let json = json_escape(text);
        // Some encoders escape slashes too.
        let json_with_slashes = Zeroizing::new(json.replace('/', "\\/"));
        for encoded in [upper, lower, json, json_with_slashes] {
            if *encoded != *text {
                // The lengths may differ, and the length of the message must not change.
                let filler = replacement.bytes().cycle().take(encoded.len()).collect::<Vec<_>>();
                self.add(secret, encoded.as_bytes(), &filler);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether any of the texts occurs.
    pub(crate) fn is_in(&self, bytes: &[u8]) -> bool {
        self.0.iter().any(|known| memmem::find(bytes, &known.text).is_some())
    }

    /// Replaces all texts; returns the index of a secret whose text was found.
    pub(crate) fn replace(&self, bytes: &mut [u8]) -> Option<usize> {
        let mut found_secret = None;
        for Replacement { text, new, secret } in &self.0 {
            let mut from = 0;
            while let Some(found) = memmem::find(&bytes[from..], text) {
                let at = from + found;
                bytes[at..at + text.len()].copy_from_slice(new);
                found_secret = Some(*secret);
                from = at + text.len();
            }
        }
        found_secret
    }

    /// Returns the length of the longest end of `bytes` with which one of the texts may start.
    pub(super) fn unfinished(&self, bytes: &[u8]) -> usize {
        let longest = |text: &[u8]| {
            let window = &bytes[bytes.len() - bytes.len().min(text.len() - 1)..];
            let starts = memchr::memchr_iter(text[0], window);
            starts.map(|at| &window[at..]).find(|end| text.starts_with(end)).map_or(0, <[u8]>::len)
        };
        self.0.iter().map(|known| longest(&known.text)).max().unwrap_or(0)
    }
}

/// Encodes `text` as it appears in base64 when `offset` bytes (modulo 3) precede it: only the characters that do not
/// depend on the bytes around it.
fn base64_core(engine: &impl base64::Engine, text: &[u8], offset: usize) -> Vec<u8> {
    let padded = Zeroizing::new([&[0, 0, 0][..offset], text].concat());
    let whole = padded.len() / 3 * 3;
    let encoded = Zeroizing::new(engine.encode(&padded[..whole]));
    let skipped = if offset == 0 { 0 } else { 4 };
    encoded.as_bytes().get(skipped..).unwrap_or_default().to_vec()
}

fn percent_encode(text: &str, digits: &[u8; 16]) -> Zeroizing<String> {
    let mut encoded = Zeroizing::new(String::with_capacity(text.len() * 3));
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let digits = [byte >> 4, byte & 15].map(|digit| char::from(digits[usize::from(digit)]));
            encoded.push('%');
            encoded.extend(digits);
        }
    }
    encoded
}

fn json_escape(text: &str) -> Zeroizing<String> {
    let mut escaped = Zeroizing::new(String::with_capacity(text.len() * 2));
    for character in text.chars() {
        if matches!(character, '"' | '\\') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    const VALUE: &str = "s3cret/va+lue\"0123456789";
    const PLACEHOLDER: &str = "abcdefghijklmnopqrstuvwx";

    fn replacements() -> Replacements {
        let mut replacements = Replacements::default();
        replacements.add_with_encodings(0, VALUE, PLACEHOLDER);
        replacements
    }

    #[test]
    fn encoded_values_are_replaced() {
        let mut texts = vec![
            VALUE.to_owned(),
            format!("a{VALUE}b{VALUE}"),
            "s3cret%2Fva%2Blue%220123456789".to_owned(),
            "s3cret%2fva%2blue%220123456789".to_owned(),
            "s3cret/va+lue\\\"0123456789".to_owned(),
            "s3cret\\/va+lue\\\"0123456789".to_owned(),
        ];
        texts.extend((0..4).map(|offset| STANDARD.encode(format!("{}:{VALUE}", "u".repeat(offset)))));
        for text in texts {
            let mut bytes = text.clone().into_bytes();
            assert_eq!(replacements().replace(&mut bytes), Some(0), "{text}");
            assert_eq!(bytes.len(), text.len());
            assert!(!replacements().is_in(&bytes));
            let decoded = STANDARD.decode(&bytes).unwrap_or(bytes);
            let shown = String::from_utf8_lossy(&decoded);
            assert!(!shown.contains("0123456"), "{shown}");
        }
    }

    #[test]
    fn unfinished_ends_are_found() {
        let replacements = replacements();
        assert_eq!(replacements.unfinished(b"xyz"), 0);
        assert_eq!(replacements.unfinished(b"xyzs3cr"), 4);
        assert_eq!(replacements.unfinished(b"s3cr s3"), 2);
        assert_eq!(replacements.unfinished(b"s3css3c"), 3);
        assert_eq!(replacements.unfinished(b""), 0);
    }
}
