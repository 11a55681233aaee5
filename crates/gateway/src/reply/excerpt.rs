//! Shortens long text to its head and its tail.

use std::borrow::Cow;

use ringfence_session::Output;

use super::terminal;

/// Maximum size of the head and of the tail.
pub(super) const MAX_END_BYTES: usize = 64 << 10;

pub(super) struct Excerpt {
    /// The text as it was written, except that invalid UTF-8 is replaced.
    pub(super) text: String,
    pub(super) dropped_bytes: u64,
}

impl Excerpt {
    pub(super) fn from_output(output: &Output) -> Self {
        Self::from_parts(&output.head, &output.tail, output.dropped_bytes)
    }

    pub(super) fn from_text(text: &str) -> Self {
        Self::from_parts(text.as_bytes(), &[], 0)
    }

    fn from_parts(head: &[u8], tail: &[u8], already_dropped: u64) -> Self {
        if already_dropped == 0 && head.len() + tail.len() <= 2 * MAX_END_BYTES {
            let whole = if tail.is_empty() { Cow::Borrowed(head) } else { Cow::Owned([head, tail].concat()) };
            return Self { text: String::from_utf8_lossy(&whole).into_owned(), dropped_bytes: 0 };
        }
        // Without a tail, the last part is the end of the head.
        let (head, rest) = head.split_at(head.len().min(MAX_END_BYTES));
        let last = if tail.is_empty() { rest } else { tail };
        let skipped = if tail.is_empty() { 0 } else { rest.len() };
        let (cut, last) = last.split_at(last.len().saturating_sub(MAX_END_BYTES));
        let (head, last) = (without_incomplete_end(head), without_incomplete_start(last));
        let dropped_bytes = already_dropped + (skipped + cut.len()) as u64;
        let text = format!(
            "{}\n[… {dropped_bytes} bytes dropped …]\n{}",
            String::from_utf8_lossy(head),
            String::from_utf8_lossy(last)
        );
        Self { text, dropped_bytes }
    }

    /// The text without terminal control sequences; None if nothing is left.
    pub(super) fn to_plain_text(&self) -> Option<String> {
        if self.text.is_empty() {
            return None;
        }
        let text = terminal::to_plain_text(&self.text);
        let text = text.trim_end();
        (!text.is_empty()).then(|| text.to_owned())
    }
}

/// Removes an incomplete UTF-8 character at the end, which would show as a replacement character.
pub(super) fn without_incomplete_end(bytes: &[u8]) -> &[u8] {
    let tail = bytes.len().saturating_sub(3);
    let last_start = bytes[tail..].iter().rposition(|byte| *byte >= 0xc0).map(|start| tail + start);
    match last_start.map(|start| (start, std::str::from_utf8(&bytes[start..]))) {
        Some((start, Err(error))) if error.error_len().is_none() => &bytes[..start],
        _ => bytes,
    }
}

/// Removes the rest of a UTF-8 character at the start.
fn without_incomplete_start(bytes: &[u8]) -> &[u8] {
    let continuation = bytes.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
    &bytes[continuation..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(head: &[u8], tail: &[u8], dropped_bytes: u64) -> Output {
        Output { head: head.into(), tail: tail.into(), dropped_bytes, full: None }
    }

    #[test]
    fn short_text_is_not_cut() {
        let excerpt = Excerpt::from_output(&output(b"a\xffb", b"", 0));
        assert_eq!((excerpt.text.as_str(), excerpt.dropped_bytes), ("a\u{fffd}b", 0));
    }

    #[test]
    fn bytes_dropped_by_the_session_are_counted() {
        let excerpt = Excerpt::from_output(&output("ab\u{e9}".as_bytes(), b"yz", 7));
        assert_eq!(excerpt.text, "ab\u{e9}\n[… 7 bytes dropped …]\nyz");
    }

    #[test]
    fn multi_byte_characters_are_not_cut() {
        let excerpt = Excerpt::from_output(&output(&"a\u{20ac}".as_bytes()[..3], &"\u{20ac}z".as_bytes()[1..], 2));
        assert_eq!(excerpt.text, "a\n[… 2 bytes dropped …]\nz");
    }

    #[test]
    fn excerpt_never_exceeds_its_limit() {
        for (head, tail) in [(3 * MAX_END_BYTES, 0), (3 * MAX_END_BYTES, 3 * MAX_END_BYTES), (10, 3 * MAX_END_BYTES)] {
            let excerpt = Excerpt::from_output(&output(&vec![b'x'; head], &vec![b'y'; tail], 1));
            assert!(excerpt.text.len() <= 2 * MAX_END_BYTES + 64);
            let retained = excerpt.text.bytes().filter(|byte| matches!(byte, b'x' | b'y')).count();
            // The note about dropped bytes contains one `y`, in `bytes`.
            assert_eq!(excerpt.dropped_bytes, (head + tail + 2 - retained) as u64);
        }
    }

    #[test]
    fn long_text_keeps_both_ends() {
        let excerpt = Excerpt::from_text(&format!("first{}last", "-".repeat(3 * MAX_END_BYTES)));
        assert!(excerpt.text.starts_with("first") && excerpt.text.ends_with("last"));
        assert_eq!(excerpt.dropped_bytes, (MAX_END_BYTES + 9) as u64);
    }
}
