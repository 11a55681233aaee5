//! Shortens long text to its head and its tail.

use std::borrow::Cow;

use ringfence_session::Output;

use super::terminal;

/// Maximum size of the head and of the tail that a session or an interpreter has of a text.
const MAX_END_BYTES: usize = 64 << 10;

/// A text of a guest, as it was written, except that invalid UTF-8 is replaced.
pub(super) struct Excerpt {
    head: String,
    /// None if nothing is missing.
    tail: Option<String>,
    pub(super) dropped_bytes: u64,
}

/// A text without terminal control sequences, for one response.
pub(super) struct PlainText {
    head: String,
    tail: Option<String>,
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
        let into_text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if already_dropped == 0 && head.len() + tail.len() <= 2 * MAX_END_BYTES {
            let whole = if tail.is_empty() { Cow::Borrowed(head) } else { Cow::Owned([head, tail].concat()) };
            return Self { head: into_text(&whole), tail: None, dropped_bytes: 0 };
        }
        // Without a tail, the last part is the end of the head.
        let (head, rest) = head.split_at(head.len().min(MAX_END_BYTES));
        let last = if tail.is_empty() { rest } else { tail };
        let skipped = if tail.is_empty() { 0 } else { rest.len() };
        let (cut, last) = last.split_at(last.len().saturating_sub(MAX_END_BYTES));
        let (head, last) = (without_incomplete_end(head), without_incomplete_start(last));
        let dropped_bytes = already_dropped + (skipped + cut.len()) as u64;
        Self { head: into_text(head), tail: Some(into_text(last)), dropped_bytes }
    }

    pub(super) fn len(&self) -> usize {
        self.head.len() + self.tail.as_ref().map_or(0, String::len)
    }

    /// The text, with a note in place of the bytes that are missing.
    pub(super) fn text(&self) -> String {
        joined(self.head.clone(), self.tail.as_deref(), self.dropped_bytes)
    }

    /// The text without terminal control sequences and without white space at its end.
    pub(super) fn plain(&self) -> PlainText {
        let plain = |text: &str| {
            let mut text = terminal::to_plain_text(text);
            text.truncate(text.trim_end().len());
            text
        };
        match &self.tail {
            None => PlainText { head: plain(&self.head), tail: None, dropped_bytes: self.dropped_bytes },
            Some(tail) => PlainText {
                head: terminal::to_plain_text(&self.head),
                tail: Some(plain(tail)),
                dropped_bytes: self.dropped_bytes,
            },
        }
    }
}

impl PlainText {
    pub(super) fn len(&self) -> usize {
        self.head.len() + self.tail.as_ref().map_or(0, String::len)
    }

    /// Shortens the text to its head and its tail, which are `max_bytes` together.
    pub(super) fn cut(mut self, max_bytes: usize) -> Self {
        if self.len() <= max_bytes {
            return self;
        }
        let length = self.len();
        let last = self.tail.take().unwrap_or_else(|| self.head.clone());
        self.head.truncate(floor_char_boundary(&self.head, max_bytes.div_ceil(2)));
        let rest = max_bytes - self.head.len();
        let start = last.len().saturating_sub(rest);
        let start = (start..=last.len()).find(|at| last.is_char_boundary(*at)).unwrap_or(last.len());
        let tail = last[start..].to_owned();
        self.dropped_bytes += (length - self.head.len() - tail.len()) as u64;
        self.tail = Some(tail);
        self
    }

    /// Changes the head and the tail.
    pub(super) fn map(self, change: impl Fn(&str) -> String) -> Self {
        Self { head: change(&self.head), tail: self.tail.as_deref().map(&change), ..self }
    }

    /// The text, with a note in place of the bytes that are missing.
    pub(super) fn join(self) -> String {
        joined(self.head, self.tail.as_deref(), self.dropped_bytes)
    }
}

fn joined(head: String, tail: Option<&str>, dropped_bytes: u64) -> String {
    match tail {
        None => head,
        Some(tail) => format!("{head}\n[… {dropped_bytes} bytes dropped …]\n{tail}"),
    }
}

fn floor_char_boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// Divides a number of bytes among texts of these lengths: short texts stay complete, long ones get the same share.
pub(super) fn shares<const N: usize>(lengths: [usize; N], total: usize) -> [usize; N] {
    let mut by_length: [usize; N] = std::array::from_fn(|index| index);
    by_length.sort_by_key(|index| lengths[*index]);
    let (mut shares, mut rest) = ([0; N], total);
    for (before, index) in by_length.into_iter().enumerate() {
        shares[index] = lengths[index].min(rest / (N - before));
        rest -= shares[index];
    }
    shares
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
    use proptest::prelude::*;

    use super::*;

    fn output(head: &[u8], tail: &[u8], dropped_bytes: u64) -> Output {
        Output { head: head.into(), tail: tail.into(), dropped_bytes, full: None }
    }

    #[test]
    fn short_text_is_not_cut() {
        let excerpt = Excerpt::from_output(&output(b"a\xffb", b"", 0));
        assert_eq!((excerpt.text().as_str(), excerpt.dropped_bytes), ("a\u{fffd}b", 0));
    }

    #[test]
    fn bytes_dropped_by_the_session_are_counted() {
        let excerpt = Excerpt::from_output(&output("ab\u{e9}".as_bytes(), b"yz", 7));
        assert_eq!(excerpt.text(), "ab\u{e9}\n[… 7 bytes dropped …]\nyz");
    }

    #[test]
    fn multi_byte_characters_are_not_cut() {
        let excerpt = Excerpt::from_output(&output(&"a\u{20ac}".as_bytes()[..3], &"\u{20ac}z".as_bytes()[1..], 2));
        assert_eq!(excerpt.text(), "a\n[… 2 bytes dropped …]\nz");
        let cut = Excerpt::from_text("\u{20ac}\u{20ac}\u{20ac}\u{20ac}").plain().cut(8);
        assert_eq!(cut.join(), "\u{20ac}\n[… 6 bytes dropped …]\n\u{20ac}");
    }

    #[test]
    fn excerpt_never_exceeds_its_limit() {
        for (head, tail) in [(3 * MAX_END_BYTES, 0), (3 * MAX_END_BYTES, 3 * MAX_END_BYTES), (10, 3 * MAX_END_BYTES)] {
            let excerpt = Excerpt::from_output(&output(&vec![b'x'; head], &vec![b'y'; tail], 1));
            assert!(excerpt.len() <= 2 * MAX_END_BYTES);
            assert_eq!(excerpt.dropped_bytes, (head + tail + 1 - excerpt.len()) as u64);
        }
    }

    #[test]
    fn long_text_keeps_both_ends() {
        let excerpt = Excerpt::from_text(&format!("first{}last", "-".repeat(3 * MAX_END_BYTES)));
        let text = excerpt.text();
        assert!(text.starts_with("first") && text.ends_with("last"));
        assert_eq!(excerpt.dropped_bytes, (MAX_END_BYTES + 9) as u64);
        let cut = excerpt.plain().cut(1000);
        assert_eq!((cut.len(), cut.dropped_bytes), (1000, (3 * MAX_END_BYTES + 9 - 1000) as u64));
        let text = cut.join();
        assert!(text.starts_with("first") && text.ends_with("last"));
    }

    proptest! {
        #[test]
        fn texts_share_the_limit(a in 0_usize..5000, b in 0_usize..5000, c in 0_usize..5000) {
            let given = shares([a, b, c], 4000);
            prop_assert!(given.iter().sum::<usize>() <= 4000);
            for (share, length) in given.into_iter().zip([a, b, c]) {
                prop_assert!(share == length || (share < length && share >= 4000 / 3));
            }
        }

        #[test]
        fn cut_text_has_at_most_the_limit(text in "\\PC{0,60}", max in 0_usize..60) {
            let plain = Excerpt::from_text(&text).plain();
            let length = plain.len();
            let cut = plain.cut(max);
            prop_assert!(cut.len() <= max.max(length.min(max)));
            prop_assert_eq!(cut.len() as u64 + cut.dropped_bytes, length as u64);
        }
    }
}
