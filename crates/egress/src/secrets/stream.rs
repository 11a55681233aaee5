//! Replacement in a stream whose chunks may split a text.

use std::sync::Arc;

use bytes::Bytes;

use super::replacement::Replacements;

/// Replaces texts in a stream. Buffers the end of a chunk only if a text may start there.
pub(crate) struct StreamReplacer {
    replacements: Arc<Replacements>,
    buffered: Vec<u8>,
    found: Option<usize>,
}

impl StreamReplacer {
    pub(crate) fn new(replacements: Arc<Replacements>) -> Self {
        Self { replacements, buffered: Vec::new(), found: None }
    }

    /// Processes a chunk; returns what may be passed on.
    pub(crate) fn push(&mut self, chunk: &Bytes) -> Bytes {
        if self.buffered.is_empty() && !self.replacements.is_in(chunk) {
            let ready = chunk.len() - self.replacements.unfinished(chunk);
            self.buffered.extend_from_slice(&chunk[ready..]);
            return chunk.slice(..ready);
        }
        let mut bytes = std::mem::take(&mut self.buffered);
        bytes.extend_from_slice(chunk);
        self.found = self.found.or(self.replacements.replace(&mut bytes));
        let ready = bytes.len() - self.replacements.unfinished(&bytes);
        self.buffered = bytes.split_off(ready);
        bytes.into()
    }

    /// Returns the buffered bytes, at the end of the stream.
    pub(crate) fn finish(&mut self) -> Bytes {
        std::mem::take(&mut self.buffered).into()
    }

    pub(crate) fn has_buffered(&self) -> bool {
        !self.buffered.is_empty()
    }

    /// Returns the index of the first secret whose text was found so far.
    pub(crate) fn found(&self) -> Option<usize> {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chunks_do_not_matter(
            parts in proptest::collection::vec(proptest::sample::select(vec!["secret", "s", "se", "sec", "ret", "x", "sesecret"]), 0..20),
            cuts in proptest::collection::vec(1usize..7, 1..30),
        ) {
            let text = parts.concat();
            let mut replacements = Replacements::default();
            replacements.add(0, b"secret", b"public");
            let mut replacer = StreamReplacer::new(Arc::new(replacements));
            let (mut out, mut rest) = (Vec::new(), text.as_bytes());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (chunk, after) = rest.split_at((*cut).min(rest.len()));
                out.extend_from_slice(&replacer.push(&Bytes::copy_from_slice(chunk)));
                rest = after;
            }
            out.extend_from_slice(&replacer.finish());
            prop_assert_eq!(String::from_utf8(out).unwrap(), text.replace("secret", "public"));
            prop_assert_eq!(replacer.found().is_some(), text.contains("secret"));
        }
    }

    #[test]
    fn complete_chunks_are_passed_on_at_once() {
        let mut replacements = Replacements::default();
        replacements.add(0, b"secret", b"public");
        let mut replacer = StreamReplacer::new(Arc::new(replacements));
        assert_eq!(&replacer.push(&Bytes::from_static(b"data: x\n\n"))[..], b"data: x\n\n");
        assert!(!replacer.has_buffered());
    }
}
