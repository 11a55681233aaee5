//! What is to become of each connection when its worker dies. The worker writes, and its supervisor reads once it is dead.
//!
//! A will holds for one moment of its connection, which the kernel's own count of bytes tells: whatever the worker did
//! between two wills, the last one is either still true or known not to be.

use std::io::Result;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringfence_sandbox::TcpProgress;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{pread, pwrite};

/// What is kept for one connection.
const ENTRY: usize = 1024;

/// Four counts, and the length of the words.
const HEAD: usize = 4 * 8 + 2;

/// Words that are longer are not said.
pub const LONGEST_WORDS: usize = ENTRY - HEAD;

/// No connection comes so far.
const NEVER: u64 = u64::MAX;

/// What is to become of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Will<'a> {
    /// The next worker may have it, if it has come exactly so far: nothing was asked that is not answered.
    pub goes_on_at: Option<TcpProgress>,
    /// Else these are the last words on it.
    pub words: &'a [u8],
    /// They are said if so much was written to it, or so much: there they make sense.
    pub said_at: [u64; 2],
}

/// What is done, then.
#[derive(Debug, PartialEq, Eq)]
pub enum Fate {
    GoesOn,
    Ends { words: Vec<u8> },
}

/// Those of all connections of a supervisor, by their numbers. Memory without a name, which both processes have open; each
/// is written with a single call, so that the death of the writer leaves the one or the other.
#[derive(Debug)]
pub struct Wills(OwnedFd);

impl Wills {
    pub fn new() -> Result<Self> {
        Ok(Self(memfd_create("ringfence-wills", MemfdFlags::CLOEXEC)?))
    }

    pub fn write(&self, number: u32, will: Will<'_>) -> Result<()> {
        let words = if will.words.len() > LONGEST_WORDS { &[] } else { will.words };
        let mut entry = Vec::with_capacity(HEAD + words.len());
        let goes_on_at = will.goes_on_at.unwrap_or(TcpProgress { read: NEVER, written: NEVER });
        for count in [goes_on_at.read, goes_on_at.written, will.said_at[0], will.said_at[1]] {
            entry.extend(count.to_le_bytes());
        }
        let [low, high, ..] = words.len().to_le_bytes();
        entry.extend([low, high]);
        entry.extend(words);
        self.write_entry(number, &entry)
    }

    fn write_entry(&self, number: u32, entry: &[u8]) -> Result<()> {
        let written = pwrite(&self.0, entry, place(number))?;
        if written == entry.len() { Ok(()) } else { Err(std::io::ErrorKind::WriteZero.into()) }
    }

    /// What was left for a connection that has come so far.
    pub fn read(&self, number: u32, progress: TcpProgress) -> Fate {
        let mut entry = [0; ENTRY];
        let read = pread(&self.0, &mut entry, place(number)).unwrap_or(0);
        fate(entry.get(..read).unwrap_or_default(), progress).unwrap_or(Fate::Ends { words: Vec::new() })
    }
}

fn fate(entry: &[u8], progress: TcpProgress) -> Option<Fate> {
    let (head, rest) = entry.split_first_chunk::<HEAD>()?;
    let count = |at: usize| head.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let (goes_on_at, said_at) = (TcpProgress { read: count(0)?, written: count(8)? }, [count(16)?, count(24)?]);
    if goes_on_at == progress {
        return Some(Fate::GoesOn);
    }
    let length = u16::from_le_bytes(head.get(32..34)?.try_into().ok()?);
    let words = rest.get(..usize::from(length)).filter(|_| said_at.contains(&progress.written));
    Some(Fate::Ends { words: words.unwrap_or_default().to_vec() })
}

impl AsFd for Wills {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Wills {
    fn from(memory: OwnedFd) -> Self {
        Self(memory)
    }
}

fn place(number: u32) -> u64 {
    u64::from(number) * ENTRY as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Fate = Fate::Ends { words: Vec::new() };

    fn at(read: u64, written: u64) -> TcpProgress {
        TcpProgress { read, written }
    }

    fn says(words: &[u8]) -> Fate {
        Fate::Ends { words: words.into() }
    }

    #[test]
    fn each_connection_has_its_own() {
        let wills = Wills::new().unwrap();
        let will = |words| Will { goes_on_at: None, words, said_at: [5, 5] };
        wills.write(0, will(b"zero")).unwrap();
        wills.write(2, will(&[b'x'; LONGEST_WORDS])).unwrap();
        let other = Wills::from(rustix::io::dup(&wills).unwrap());
        assert_eq!(other.read(0, at(9, 5)), says(b"zero"));
        assert_eq!(other.read(2, at(9, 5)), says(&[b'x'; LONGEST_WORDS]));
        // None was left.
        assert_eq!(other.read(3, at(9, 5)), SILENCE);
        wills.write(2, will(b"short")).unwrap();
        assert_eq!(other.read(2, at(9, 5)), says(b"short"));
    }

    #[test]
    fn a_will_holds_for_its_moment_alone() {
        let wills = Wills::new().unwrap();
        wills.write(0, Will { goes_on_at: Some(at(10, 20)), words: b"lost", said_at: [20, 30] }).unwrap();
        assert_eq!(wills.read(0, at(10, 20)), Fate::GoesOn);
        assert_eq!(wills.read(0, at(10, 21)), SILENCE);
        // A request was read since.
        assert_eq!(wills.read(0, at(11, 20)), says(b"lost"));
        assert_eq!(wills.read(0, at(11, 30)), says(b"lost"));
        // And an answer has begun.
        assert_eq!(wills.read(0, at(11, 21)), SILENCE);
    }

    #[test]
    fn words_that_are_too_long_are_not_said() {
        let wills = Wills::new().unwrap();
        wills.write(0, Will { goes_on_at: None, words: &[b'x'; LONGEST_WORDS + 1], said_at: [0, 0] }).unwrap();
        assert_eq!(wills.read(0, at(1, 0)), SILENCE);
    }

    #[test]
    fn nonsense_ends_without_words() {
        let wills = Wills::new().unwrap();
        for entry in [&[0; HEAD - 1][..], &[0xff; HEAD], &[0xff; ENTRY]] {
            wills.write_entry(7, entry).unwrap();
            assert_eq!(wills.read(7, at(1, u64::MAX)), SILENCE, "{} bytes", entry.len());
        }
    }
}
