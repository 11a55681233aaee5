//! What is to become of each connection when its worker dies. The worker writes, and its supervisor reads once it is dead.

use std::io::Result;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{pread, pwrite};

/// What is kept for one connection.
const ENTRY: usize = 1024;

/// Whether it goes on, and how long its last words are.
const HEAD: usize = 3;

/// Words that are longer are not said.
pub const LONGEST_WORDS: usize = ENTRY - HEAD;

const GOES_ON: u8 = 1;
const ENDS: u8 = 2;

/// What is to become of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Will {
    /// Nothing was asked that is not answered: the next worker may have it.
    GoOn,
    /// These are the last words on it, if any.
    End(Vec<u8>),
}

/// Those of all connections of a supervisor, by their numbers. Memory without a name, which both processes have open; each
/// is written with a single call, so that the death of the writer leaves the one or the other.
#[derive(Debug)]
pub struct Wills(OwnedFd);

impl Wills {
    pub fn new() -> Result<Self> {
        Ok(Self(memfd_create("ringfence-wills", MemfdFlags::CLOEXEC)?))
    }

    /// The next worker may have it.
    pub fn goes_on(&self, number: u32) -> Result<()> {
        self.write(number, &[GOES_ON, 0, 0])
    }

    /// It ends with these words; with none, if they are too long.
    pub fn ends_with(&self, number: u32, words: &[u8]) -> Result<()> {
        let words = if words.len() > LONGEST_WORDS { &[] } else { words };
        let [low, high, ..] = words.len().to_le_bytes();
        let mut entry = Vec::with_capacity(HEAD + words.len());
        entry.extend([ENDS, low, high]);
        entry.extend(words);
        self.write(number, &entry)
    }

    fn write(&self, number: u32, entry: &[u8]) -> Result<()> {
        let written = pwrite(&self.0, entry, place(number))?;
        if written == entry.len() { Ok(()) } else { Err(std::io::ErrorKind::WriteZero.into()) }
    }

    /// What cannot be read ends without words.
    pub fn read(&self, number: u32) -> Will {
        let mut entry = [0; ENTRY];
        let read = pread(&self.0, &mut entry, place(number)).unwrap_or(0);
        match entry.get(..read) {
            Some([GOES_ON, ..]) => Will::GoOn,
            Some([ENDS, low, high, rest @ ..]) => {
                let length = usize::from(u16::from_le_bytes([*low, *high]));
                Will::End(rest.get(..length).unwrap_or_default().to_vec())
            }
            _ => Will::End(Vec::new()),
        }
    }
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

    #[test]
    fn each_connection_has_its_own() {
        let wills = Wills::new().unwrap();
        wills.ends_with(0, b"zero").unwrap();
        wills.ends_with(2, &[b'x'; LONGEST_WORDS]).unwrap();
        wills.goes_on(1).unwrap();
        let other = Wills::from(rustix::io::dup(&wills).unwrap());
        assert_eq!(other.read(0), Will::End(b"zero".into()));
        assert_eq!(other.read(1), Will::GoOn);
        assert_eq!(other.read(2), Will::End(vec![b'x'; LONGEST_WORDS]));
        // None was left.
        assert_eq!(other.read(3), Will::End(Vec::new()));
        wills.ends_with(2, b"short").unwrap();
        assert_eq!(other.read(2), Will::End(b"short".into()));
    }

    #[test]
    fn words_that_are_too_long_are_not_said() {
        let wills = Wills::new().unwrap();
        wills.ends_with(0, &[b'x'; LONGEST_WORDS + 1]).unwrap();
        assert_eq!(wills.read(0), Will::End(Vec::new()));
    }

    #[test]
    fn nonsense_ends_without_words() {
        let wills = Wills::new().unwrap();
        for entry in [&[9_u8, 1, 0, b'x'][..], &[ENDS, 255, 255, b'x'], &[ENDS], &[0; ENTRY]] {
            wills.write(0, &[0; ENTRY]).unwrap();
            wills.write(0, entry).unwrap();
            assert_eq!(wills.read(0), Will::End(Vec::new()), "{entry:?}");
        }
    }
}
