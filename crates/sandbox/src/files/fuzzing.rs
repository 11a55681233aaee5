//! Answers of a hostile init about files, for the fuzz target `init_frames`.

use std::time::{Duration, Instant};

use super::{Conversation, FileReport, Measuring};
use crate::frame::Channel;

const MAX_ENTRIES: u32 = 20;

/// Reads the same answers as those to each kind of question.
pub(crate) fn answers(channel: impl Fn() -> Channel, frames: &[u8]) {
    let conversation = || Conversation { answers: channel(), deadline: Instant::now() + Duration::from_secs(5) };
    if let Ok(listing) = conversation().listing(MAX_ENTRIES) {
        assert!(listing.entries.len() <= MAX_ENTRIES as usize);
        assert!(listing.entries.is_sorted_by(|one, other| one.name <= other.name));
    }
    if let Ok(file) = conversation().opened() {
        assert!(file.metadata().expect("metadata").is_file());
    }
    let _ = Measuring(conversation()).finish();
    let conversation = conversation();
    for _ in 0..=frames.len() / 6 {
        let Ok((report, _)) = conversation.next() else { return };
        let again = serde_json::to_vec(&report).expect("JSON");
        assert_eq!(serde_json::from_slice::<FileReport>(&again).expect("the same report"), report);
    }
    panic!("more answers than frames");
}
