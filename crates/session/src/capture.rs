//! What a guest prints, kept within a bound whatever it prints: the head and the tail, and beside them the whole.

use std::collections::VecDeque;

use super::Output;
use crate::full_output::Whole;

/// Bytes of each end that are kept.
const KEPT: usize = 64 << 10;

/// Takes all that is printed to one stream.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    dropped: u64,
    whole: Option<Whole>,
}

impl Capture {
    pub(crate) fn take(&mut self, mut bytes: &[u8]) {
        self.spill(bytes);
        let room = KEPT - self.head.len();
        let (to_head, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(to_head);
        bytes = rest;
        if bytes.len() > KEPT {
            let (dropped, last) = bytes.split_at(bytes.len() - KEPT);
            self.dropped += dropped.len() as u64;
            bytes = last;
        }
        self.tail.extend(bytes);
        let over = self.tail.len().saturating_sub(KEPT);
        self.tail.drain(..over);
        self.dropped += over as u64;
    }

    /// Begins to keep the whole when something is about to be dropped; until then head and tail are all of it.
    fn spill(&mut self, bytes: &[u8]) {
        if self.dropped == 0 && self.whole.is_none() && self.head.len() + self.tail.len() + bytes.len() > 2 * KEPT {
            self.whole = Whole::begin();
            let (one, other) = self.tail.as_slices();
            if let Some(whole) = &mut self.whole {
                for part in [&self.head, one, other] {
                    whole.take(part);
                }
            }
        }
        if let Some(whole) = &mut self.whole {
            whole.take(bytes);
        }
    }

    pub(crate) fn finish(mut self) -> Output {
        if self.dropped == 0 {
            self.head.extend(self.tail.drain(..));
        }
        Output { head: self.head, tail: self.tail.into(), dropped_bytes: self.dropped, whole: self.whole }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_output_is_kept_whole() {
        let mut capture = Capture::default();
        capture.take(b"one ");
        capture.take(&vec![b'x'; KEPT]);
        capture.take(b" two");
        let output = capture.finish();
        assert_eq!((output.head.len(), output.tail.len(), output.dropped_bytes), (KEPT + 8, 0, 0));
        assert!(output.whole.is_none());
        assert!(output.head.starts_with(b"one x") && output.head.ends_with(b"x two"));
    }

    #[test]
    fn a_flood_keeps_its_head_and_tail_and_counts_the_rest() {
        let mut capture = Capture::default();
        capture.take(b"start");
        for _ in 0..1000 {
            capture.take(&vec![b'.'; 10_000]);
        }
        capture.take(b"end");
        let output = capture.finish();
        assert!(output.head.starts_with(b"start.") && output.tail.ends_with(b".end"));
        assert_eq!((output.head.len(), output.tail.len()), (KEPT, KEPT));
        assert_eq!(output.dropped_bytes, 10_000_008 - 2 * KEPT as u64);
        let whole = output.whole.unwrap();
        assert_eq!(whole.bytes + whole.missing_bytes, 10_000_008);
    }
}
