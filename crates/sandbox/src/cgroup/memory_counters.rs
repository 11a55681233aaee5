//! Reads the counters of a memory cgroup, through descriptors that stay valid if names change.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// The memory usage of a sandbox, and the number of processes killed for it.
#[derive(Debug)]
pub struct MemoryCounters {
    events: File,
    usage: File,
}

impl MemoryCounters {
    /// `events` is the file with a line `oom_kill N`, which v1 and v2 have.
    pub(crate) fn new(events: impl Into<File>, usage: impl Into<File>) -> Self {
        Self { events: events.into(), usage: usage.into() }
    }

    pub(crate) fn from_descriptors(mut descriptors: impl Iterator<Item = OwnedFd>) -> Option<Self> {
        Some(Self::new(descriptors.next()?, descriptors.next()?))
    }

    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.events.as_fd(), self.usage.as_fd()]
    }

    /// The number of processes that the kernel has killed because the memory limit was reached.
    pub fn kills(&self) -> u64 {
        let find = |line: &str| line.strip_prefix("oom_kill ")?.trim().parse().ok();
        read(&self.events).lines().find_map(find).unwrap_or(0)
    }

    /// The memory usage of all processes together.
    pub fn bytes(&self) -> u64 {
        read(&self.usage).trim().parse().unwrap_or(0)
    }
}

/// Reads a counter file from its start: the kernel generates the text on each read.
fn read(file: &File) -> String {
    let mut buffer = [0; 512];
    let length = file.read_at(&mut buffer, 0).unwrap_or(0);
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}
