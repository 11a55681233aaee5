//! What a memory cgroup has counted, read through descriptors that outlast any change of names.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// The memory use of a sandbox, and what was killed for it.
#[derive(Debug)]
pub struct MemoryGauge {
    events: File,
    usage: File,
}

impl MemoryGauge {
    /// `events` has a line `oom_kill N`, on v1 and v2 alike.
    pub(crate) fn new(events: impl Into<File>, usage: impl Into<File>) -> Self {
        Self { events: events.into(), usage: usage.into() }
    }

    pub(crate) fn from_descriptors(mut descriptors: impl Iterator<Item = OwnedFd>) -> Option<Self> {
        Some(Self::new(descriptors.next()?, descriptors.next()?))
    }

    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.events.as_fd(), self.usage.as_fd()]
    }

    /// Processes that the kernel has killed for want of memory.
    pub fn kills(&self) -> u64 {
        let find = |line: &str| line.strip_prefix("oom_kill ")?.trim().parse().ok();
        read(&self.events).lines().find_map(find).unwrap_or(0)
    }

    /// What its processes hold together.
    pub fn bytes(&self) -> u64 {
        read(&self.usage).trim().parse().unwrap_or(0)
    }
}

/// From its start: the kernel makes the text anew at each reading.
fn read(file: &File) -> String {
    let mut buffer = [0; 512];
    let length = file.read_at(&mut buffer, 0).unwrap_or(0);
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}
