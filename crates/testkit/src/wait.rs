//! Waiting for a condition instead of sleeping.

use std::time::{Duration, Instant};

/// Far longer than any condition takes, so that a busy host fails no test.
const TIMEOUT: Duration = Duration::from_secs(60);

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Waits until the condition is true; panics with `failure` if that takes too long.
pub fn wait_until(failure: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "{failure}");
        std::thread::sleep(POLL_INTERVAL);
    }
}
