//! Limits the number of sockets whose unread messages no memory limit covers: netlink and UDP.
//!
//! The kernel counts sockets per network namespace. Concurrent calls may be allowed before the first of them is
//! counted, so the limit can be exceeded by the number of the sandbox's tasks.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// A sandbox may have one such socket for this much of its memory limit. A socket with default buffers can use about
/// 400 KiB: 208 KiB of unread messages, 64 KiB of unsent messages, 128 KiB of options.
const MEMORY_PER_SOCKET: u64 = 2 << 20;

const MIN_SOCKETS: u64 = 32;
const MAX_SOCKETS: u64 = 4096;

/// Protocols whose buffers the memory cgroup limits. TCP sockets count here only if they are bound or connected.
const CHARGED: [&str; 4] = ["TCP", "TCPv6", "UNIX", "UNIX-STREAM"];

pub(super) struct SocketLimit {
    max_sockets: u64,
    /// `sockstat` and `protocols` in /proc, opened by the first check.
    counters: Option<[File; 2]>,
}

impl SocketLimit {
    pub(super) fn new(memory_bytes: u64) -> Self {
        Self { max_sockets: (memory_bytes / MEMORY_PER_SOCKET).clamp(MIN_SOCKETS, MAX_SOCKETS), counters: None }
    }

    /// Whether one more socket is allowed; false if the sockets cannot be counted.
    pub(super) fn is_below_limit(&mut self) -> bool {
        self.count().is_some_and(|count| count < self.max_sockets)
    }

    fn count(&mut self) -> Option<u64> {
        if self.counters.is_none() {
            let open = |name: &str| File::open(format!("/proc/self/net/{name}")).ok();
            self.counters = Some([open("sockstat")?, open("protocols")?]);
        }
        let [totals, protocols] = self.counters.as_ref()?;
        count_uncharged(&read(totals)?, &read(protocols)?)
    }
}

fn read(file: &File) -> Option<String> {
    let mut text = vec![0; 16 << 10];
    let mut length = 0;
    while length < text.len() {
        match file.read_at(&mut text[length..], length as u64).ok()? {
            0 => break,
            added => length += added,
        }
    }
    text.truncate(length);
    String::from_utf8(text).ok()
}

/// Returns the number of sockets whose memory is not charged: all sockets less the charged ones. The lines of
/// `/proc/net/protocols` for UDP cannot be used, because they omit sockets that are not bound.
fn count_uncharged(totals: &str, protocols: &str) -> Option<u64> {
    let all: u64 = totals.lines().next()?.strip_prefix("sockets: used ")?.trim().parse().ok()?;
    let count = |line: &str| {
        let mut fields = line.split_whitespace();
        CHARGED.contains(&fields.next()?).then(|| fields.nth(1)?.parse::<u64>().ok())?
    };
    let charged: u64 = protocols.lines().filter_map(count).sum();
    Some(all.saturating_sub(charged))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udp_and_netlink_sockets_are_counted() {
        let protocols = "protocol  size sockets  memory press maxhdr\n\
            TCPv6     2432      1       0   no     192\n\
            UNIX-STREAM 1152      8      -1   NI       0\n\
            UNIX      1152      2      -1   NI       0\n\
            UDP       1344      5      46   NI       0\n\
            TCP       2304      4       0   no     192\n\
            NETLINK   1096      3      -1   NI       0\n";
        assert_eq!(count_uncharged("sockets: used 25\nTCP: inuse 5\n", protocols), Some(10));
        assert_eq!(count_uncharged("sockets: used 3\n", protocols), Some(0));
        assert_eq!(count_uncharged("", protocols), None);
    }

    #[test]
    fn limit_depends_on_memory_and_unreadable_counters_refuse() {
        assert_eq!(SocketLimit::new(64 << 20).max_sockets, 32);
        assert_eq!(SocketLimit::new(512 << 20).max_sockets, 256);
        assert_eq!(SocketLimit::new(1 << 40).max_sockets, 4096);
        let empty = || File::open("/dev/null").unwrap();
        let mut unreadable = SocketLimit { max_sockets: 32, counters: Some([empty(), empty()]) };
        assert!(!unreadable.is_below_limit());
    }
}
