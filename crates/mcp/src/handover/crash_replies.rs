//! The reply on each connection if its worker dies. The worker writes the records; the supervisor reads them once
//! the worker is dead.
//!
//! A record is valid for one moment of its connection, which the kernel's byte counters identify. Whatever the worker
//! did between two records, the supervisor can tell whether the last record is still valid.

use std::io::Result;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringfence_sandbox::TcpProgress;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{pread, pwrite};

/// Size of the record of one connection.
const RECORD_BYTES: usize = 1024;

/// Four counters, and the length of the reply.
const HEAD_BYTES: usize = 4 * 8 + 2;

/// Longer replies are not sent.
pub const MAX_REPLY_BYTES: usize = RECORD_BYTES - HEAD_BYTES;

/// A counter that no connection reaches.
const NEVER: u64 = u64::MAX;

/// The reply on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrashReply<'a> {
    /// The next worker gets the connection if its counters have exactly these values: no request is unanswered.
    pub resume_at: Option<TcpProgress>,
    /// Otherwise the connection is closed after this reply.
    pub reply: &'a [u8],
    /// The reply is sent only if one of these numbers of bytes was written: elsewhere it would corrupt a response.
    pub reply_at: [u64; 2],
}

/// The action that follows from a record.
#[derive(Debug, PartialEq, Eq)]
pub enum CrashAction {
    Resume,
    Close { reply: Vec<u8> },
}

/// The records of all connections of a supervisor, by their numbers, in anonymous memory that both processes share. Each
/// record is written with one system call, so that a writer that dies leaves the old or the new one.
#[derive(Debug)]
pub struct CrashReplies(OwnedFd);

impl CrashReplies {
    pub fn new() -> Result<Self> {
        Ok(Self(memfd_create("ringfence-crash-replies", MemfdFlags::CLOEXEC)?))
    }

    pub fn write(&self, number: u32, record: CrashReply<'_>) -> Result<()> {
        let reply = if record.reply.len() > MAX_REPLY_BYTES { &[] } else { record.reply };
        let mut bytes = Vec::with_capacity(HEAD_BYTES + reply.len());
        let resume_at = record.resume_at.unwrap_or(TcpProgress { read: NEVER, written: NEVER });
        for count in [resume_at.read, resume_at.written, record.reply_at[0], record.reply_at[1]] {
            bytes.extend(count.to_le_bytes());
        }
        let [low, high, ..] = reply.len().to_le_bytes();
        bytes.extend([low, high]);
        bytes.extend(reply);
        self.write_bytes(number, &bytes)
    }

    fn write_bytes(&self, number: u32, bytes: &[u8]) -> Result<()> {
        let written = pwrite(&self.0, bytes, offset(number))?;
        if written == bytes.len() { Ok(()) } else { Err(std::io::ErrorKind::WriteZero.into()) }
    }

    /// Returns the action for a connection with these counters.
    pub fn read(&self, number: u32, progress: TcpProgress) -> CrashAction {
        let mut bytes = [0; RECORD_BYTES];
        let read = pread(&self.0, &mut bytes, offset(number)).unwrap_or(0);
        let action = decode(bytes.get(..read).unwrap_or_default(), progress);
        action.unwrap_or(CrashAction::Close { reply: Vec::new() })
    }
}

fn decode(bytes: &[u8], progress: TcpProgress) -> Option<CrashAction> {
    let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let count = |at: usize| head.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let (resume_at, reply_at) = (TcpProgress { read: count(0)?, written: count(8)? }, [count(16)?, count(24)?]);
    if resume_at == progress {
        return Some(CrashAction::Resume);
    }
    let length = u16::from_le_bytes(head.get(32..34)?.try_into().ok()?);
    let reply = rest.get(..usize::from(length)).filter(|_| reply_at.contains(&progress.written));
    Some(CrashAction::Close { reply: reply.unwrap_or_default().to_vec() })
}

impl AsFd for CrashReplies {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for CrashReplies {
    fn from(memory: OwnedFd) -> Self {
        Self(memory)
    }
}

fn offset(number: u32) -> u64 {
    u64::from(number) * RECORD_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_REPLY: CrashAction = CrashAction::Close { reply: Vec::new() };

    fn at(read: u64, written: u64) -> TcpProgress {
        TcpProgress { read, written }
    }

    fn close_with(reply: &[u8]) -> CrashAction {
        CrashAction::Close { reply: reply.into() }
    }

    #[test]
    fn each_connection_has_its_own_record() {
        let replies = CrashReplies::new().unwrap();
        let record = |reply| CrashReply { resume_at: None, reply, reply_at: [5, 5] };
        replies.write(0, record(b"zero")).unwrap();
        replies.write(2, record(&[b'x'; MAX_REPLY_BYTES])).unwrap();
        let same_memory = CrashReplies::from(rustix::io::dup(&replies).unwrap());
        assert_eq!(same_memory.read(0, at(9, 5)), close_with(b"zero"));
        assert_eq!(same_memory.read(2, at(9, 5)), close_with(&[b'x'; MAX_REPLY_BYTES]));
        assert_eq!(same_memory.read(3, at(9, 5)), NO_REPLY, "there is no such record");
        replies.write(2, record(b"short")).unwrap();
        assert_eq!(same_memory.read(2, at(9, 5)), close_with(b"short"));
    }

    #[test]
    fn record_is_valid_only_at_its_counters() {
        let replies = CrashReplies::new().unwrap();
        let record = CrashReply { resume_at: Some(at(10, 20)), reply: b"lost", reply_at: [20, 30] };
        replies.write(0, record).unwrap();
        assert_eq!(replies.read(0, at(10, 20)), CrashAction::Resume);
        assert_eq!(replies.read(0, at(10, 21)), NO_REPLY);
        assert_eq!(replies.read(0, at(11, 20)), close_with(b"lost"), "a request was read");
        assert_eq!(replies.read(0, at(11, 30)), close_with(b"lost"));
        assert_eq!(replies.read(0, at(11, 21)), NO_REPLY, "a response has begun");
    }

    #[test]
    fn too_long_reply_is_not_sent() {
        let replies = CrashReplies::new().unwrap();
        let record = CrashReply { resume_at: None, reply: &[b'x'; MAX_REPLY_BYTES + 1], reply_at: [0, 0] };
        replies.write(0, record).unwrap();
        assert_eq!(replies.read(0, at(1, 0)), NO_REPLY);
    }

    #[test]
    fn malformed_record_closes_without_a_reply() {
        let replies = CrashReplies::new().unwrap();
        for bytes in [&[0; HEAD_BYTES - 1][..], &[0xff; HEAD_BYTES], &[0xff; RECORD_BYTES]] {
            replies.write_bytes(7, bytes).unwrap();
            assert_eq!(replies.read(7, at(1, u64::MAX)), NO_REPLY, "{} bytes", bytes.len());
        }
    }
}
