//! Replies of a hostile init, for the fuzz target `init_frames`.

use std::time::{Duration, Instant};

use super::egress_ports::receive_listener;
use super::files::{PendingReply, PendingWorkspaceUsage};
use crate::protocol::{Channel, FileReport};

const MAX_ENTRIES: u32 = 20;

/// Reads the same frames as the reply to each kind of request that has its own socket.
pub(crate) fn file_replies(channel: impl Fn() -> Channel, frames: &[u8]) {
    let reply = || PendingReply { channel: channel(), deadline: Instant::now() + Duration::from_secs(5) };
    if let Ok(listing) = reply().listing(MAX_ENTRIES) {
        assert!(listing.entries.len() <= MAX_ENTRIES as usize);
        assert!(listing.entries.is_sorted_by(|left, right| left.name <= right.name));
    }
    if let Ok(file) = reply().opened_file() {
        assert!(file.metadata().expect("metadata").is_file());
    }
    let _ = PendingWorkspaceUsage(reply()).finish();
    assert!(
        receive_listener(&channel(), 80, Instant::now() + Duration::from_secs(5)).is_err(),
        "only files are passed"
    );
    let reply = reply();
    for _ in 0..=frames.len() / 6 {
        let Ok((report, _)) = reply.next() else { return };
        let encoded = serde_json::to_vec(&report).expect("JSON");
        assert_eq!(serde_json::from_slice::<FileReport>(&encoded).expect("the same report"), report);
    }
    panic!("more replies than frames");
}
