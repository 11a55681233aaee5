//! Long text, cut to its head and its tail.

use std::borrow::Cow;

use ringfence_session::Output;

use super::terminal;

/// What is kept of each end.
pub(super) const END_BYTES: usize = 64 << 10;

/// What is shown of a text, as it was written except for bytes that are no UTF-8.
pub(super) struct Excerpt {
    pub(super) text: String,
    pub(super) dropped_bytes: u64,
}

impl Excerpt {
    pub(super) fn of(output: &Output) -> Self {
        Self::of_parts(&output.head, &output.tail, output.dropped_bytes)
    }

    pub(super) fn of_text(text: &str) -> Self {
        Self::of_parts(text.as_bytes(), &[], 0)
    }

    fn of_parts(head: &[u8], tail: &[u8], already_dropped: u64) -> Self {
        if already_dropped == 0 && head.len() + tail.len() <= 2 * END_BYTES {
            let whole = if tail.is_empty() { Cow::Borrowed(head) } else { Cow::Owned([head, tail].concat()) };
            return Self { text: String::from_utf8_lossy(&whole).into_owned(), dropped_bytes: 0 };
        }
        // A tail of its own, or else the end of the head.
        let (head, rest) = head.split_at(head.len().min(END_BYTES));
        let last = if tail.is_empty() { rest } else { tail };
        let skipped = if tail.is_empty() { 0 } else { rest.len() };
        let (cut, last) = last.split_at(last.len().saturating_sub(END_BYTES));
        let (head, last) = (without_broken_end(head), without_broken_start(last));
        let dropped_bytes = already_dropped + (skipped + cut.len()) as u64;
        let text = format!(
            "{}\n[… {dropped_bytes} bytes dropped …]\n{}",
            String::from_utf8_lossy(head),
            String::from_utf8_lossy(last)
        );
        Self { text, dropped_bytes }
    }

    /// The same for a reader, if there is anything to read.
    pub(super) fn plain(&self) -> Option<String> {
        if self.text.is_empty() {
            return None;
        }
        let text = terminal::plain(&self.text);
        let text = text.trim_end();
        (!text.is_empty()).then(|| text.to_owned())
    }
}

/// A cut may fall inside a character, which would then show as a replacement mark.
pub(super) fn without_broken_end(bytes: &[u8]) -> &[u8] {
    let tail = bytes.len().saturating_sub(3);
    let broken = bytes[tail..].iter().rposition(|byte| *byte >= 0xc0).map(|start| tail + start);
    match broken.map(|start| (start, std::str::from_utf8(&bytes[start..]))) {
        Some((start, Err(error))) if error.error_len().is_none() => &bytes[..start],
        _ => bytes,
    }
}

fn without_broken_start(bytes: &[u8]) -> &[u8] {
    let continuation = bytes.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
    &bytes[continuation..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(head: &[u8], tail: &[u8], dropped_bytes: u64) -> Output {
        Output { head: head.into(), tail: tail.into(), dropped_bytes, whole: None }
    }

    #[test]
    fn short_text_is_whole() {
        let excerpt = Excerpt::of(&output(b"a\xffb", b"", 0));
        assert_eq!((excerpt.text.as_str(), excerpt.dropped_bytes), ("a\u{fffd}b", 0));
    }

    #[test]
    fn what_the_runtime_dropped_is_named() {
        let excerpt = Excerpt::of(&output("ab\u{e9}".as_bytes(), b"yz", 7));
        assert_eq!(excerpt.text, "ab\u{e9}\n[… 7 bytes dropped …]\nyz");
    }

    #[test]
    fn characters_are_not_cut_in_two() {
        let excerpt = Excerpt::of(&output(&"a\u{20ac}".as_bytes()[..3], &"\u{20ac}z".as_bytes()[1..], 2));
        assert_eq!(excerpt.text, "a\n[… 2 bytes dropped …]\nz");
    }

    #[test]
    fn nothing_is_longer_than_its_bound() {
        for (head, tail) in [(3 * END_BYTES, 0), (3 * END_BYTES, 3 * END_BYTES), (10, 3 * END_BYTES)] {
            let excerpt = Excerpt::of(&output(&vec![b'x'; head], &vec![b'y'; tail], 1));
            assert!(excerpt.text.len() <= 2 * END_BYTES + 64);
            let kept = excerpt.text.bytes().filter(|byte| matches!(byte, b'x' | b'y')).count();
            // One `y` is in the note itself.
            assert_eq!(excerpt.dropped_bytes, (head + tail + 2 - kept) as u64);
        }
    }

    #[test]
    fn a_long_string_keeps_both_ends() {
        let excerpt = Excerpt::of_text(&format!("first{}last", "-".repeat(3 * END_BYTES)));
        assert!(excerpt.text.starts_with("first") && excerpt.text.ends_with("last"));
        assert_eq!(excerpt.dropped_bytes, (END_BYTES + 9) as u64);
    }
}
