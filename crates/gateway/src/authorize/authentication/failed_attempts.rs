//! Limits failed authentication per client address, with a token bucket for each address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use ringfence_core::sync::Mutex;
use ringfence_mcp::http::network;
use tokio::time::Instant;

/// Maximum number of failures of one address, and the time after which one of them expires.
pub(crate) const MAX_FAILURES: u32 = 20;
const REFILL: Duration = Duration::from_secs(1);

/// Maximum number of tracked addresses. Beyond it, the one that failed least recently is forgotten.
const MAX_ADDRESSES: usize = 4096;

#[derive(Default)]
pub(super) struct FailedAttempts(Mutex<HashMap<IpAddr, Bucket>>);

/// The failures that still count.
#[derive(Clone, Copy)]
struct Bucket {
    failures: u32,
    since: Instant,
}

impl Bucket {
    fn refilled(self, now: Instant) -> Self {
        let elapsed = now.saturating_duration_since(self.since);
        let expired = u32::try_from(elapsed.as_millis() / REFILL.as_millis()).unwrap_or(u32::MAX);
        if expired >= self.failures {
            return Self { failures: 0, since: now };
        }
        Self { failures: self.failures - expired, since: self.since + REFILL * expired }
    }
}

impl FailedAttempts {
    /// Whether an address has failed too often.
    pub(super) fn is_blocked(&self, address: IpAddr) -> bool {
        let now = Instant::now();
        self.0.lock().get(&network(address)).is_some_and(|bucket| bucket.refilled(now).failures >= MAX_FAILURES)
    }

    /// Counts a failure. Returns false if the address was over the limit already.
    pub(super) fn record(&self, address: IpAddr) -> bool {
        let (address, now) = (network(address), Instant::now());
        let mut buckets = self.0.lock();
        if !buckets.contains_key(&address) && buckets.len() >= MAX_ADDRESSES {
            buckets.retain(|_, bucket| bucket.refilled(now).failures > 0);
            let oldest = buckets.iter().min_by_key(|(_, bucket)| bucket.since).map(|(address, _)| *address);
            if buckets.len() >= MAX_ADDRESSES
                && let Some(oldest) = oldest
            {
                buckets.remove(&oldest);
            }
        }
        let bucket = buckets.entry(address).or_insert(Bucket { failures: 0, since: now });
        *bucket = bucket.refilled(now);
        if bucket.failures >= MAX_FAILURES {
            return false;
        }
        bucket.failures += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failures_are_limited_per_address_and_expire() {
        let attempts = FailedAttempts::default();
        let [one, other]: [IpAddr; 2] = ["192.0.2.1", "192.0.2.2"].map(|address| address.parse().unwrap());
        assert!((0..MAX_FAILURES).all(|_| attempts.record(one)));
        assert!(attempts.is_blocked(one) && !attempts.record(one));
        assert!(!attempts.is_blocked(other));
        tokio::time::advance(REFILL).await;
        assert!(!attempts.is_blocked(one));
        assert!(attempts.record(one) && !attempts.record(one));
        tokio::time::advance(REFILL * MAX_FAILURES).await;
        assert!((0..MAX_FAILURES).all(|_| attempts.record(one)));
    }

    #[tokio::test(start_paused = true)]
    async fn tracked_addresses_are_bounded() {
        let attempts = FailedAttempts::default();
        for number in 0..u32::try_from(MAX_ADDRESSES).unwrap() + 100 {
            attempts.record(std::net::Ipv4Addr::from(0x0a00_0000 + number).into());
        }
        assert_eq!(attempts.0.lock().len(), MAX_ADDRESSES);
    }
}
