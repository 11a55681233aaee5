//! Writes a tar archive: POSIX ustar, with GNU entries for long names, which every `tar` reads.

use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

const BLOCK: usize = 512;
const MAX_NAME_BYTES: usize = 100;

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Type {
    File = b'0',
    Link = b'2',
    Directory = b'5',
    LongTarget = b'K',
    LongName = b'L',
}

pub(super) struct Archive<W>(W);

impl<W: Write> Archive<W> {
    pub(super) fn new(sink: W) -> Self {
        Self(sink)
    }

    pub(super) fn directory(&mut self, path: &Path, mode: u32) -> io::Result<()> {
        self.header(Type::Directory, path, b"", mode, 0, 0)
    }

    pub(super) fn link(&mut self, path: &Path, target: &Path) -> io::Result<()> {
        self.header(Type::Link, path, target.as_os_str().as_bytes(), 0o777, 0, 0)
    }

    /// Writes exactly `size` bytes: a file that has shrunk meanwhile is padded with zeros, one that has grown is
    /// truncated.
    pub(super) fn file(&mut self, path: &Path, mode: u32, modified: u64, size: u64, from: impl Read) -> io::Result<()> {
        self.header(Type::File, path, b"", mode, size, modified)?;
        let copied = io::copy(&mut from.take(size), &mut self.0)?;
        io::copy(&mut io::repeat(0).take(size - copied), &mut self.0)?;
        self.pad(size)
    }

    /// Writes the end of the archive, and returns the sink.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.0.write_all(&[0; 2 * BLOCK])?;
        Ok(self.0)
    }

    fn header(
        &mut self,
        kind: Type,
        path: &Path,
        target: &[u8],
        mode: u32,
        size: u64,
        modified: u64,
    ) -> io::Result<()> {
        let mut name = path.as_os_str().as_bytes().to_vec();
        if kind == Type::Directory {
            name.push(b'/');
        }
        for (kind, text) in [(Type::LongName, name.as_slice()), (Type::LongTarget, target)] {
            if text.len() > MAX_NAME_BYTES {
                let size = text.len() as u64 + 1;
                self.block(kind, b"././@LongLink", b"", 0, size, 0)?;
                self.0.write_all(text)?;
                self.0.write_all(&[0])?;
                self.pad(size)?;
            }
        }
        self.block(kind, &name, target, mode, size, modified)
    }

    fn block(&mut self, kind: Type, name: &[u8], target: &[u8], mode: u32, size: u64, modified: u64) -> io::Result<()> {
        let mut block = [0; BLOCK];
        let mut put = |at: usize, text: &[u8]| block[at..at + text.len()].copy_from_slice(text);
        put(0, &name[..name.len().min(MAX_NAME_BYTES)]);
        put(100, format!("{mode:07o}").as_bytes());
        put(108, b"0000000");
        put(116, b"0000000");
        // Eleven octal digits are enough for 8 GiB; `CopyLimits` are far below that.
        put(124, format!("{size:011o}").as_bytes());
        put(136, format!("{:011o}", modified.min(0o777_7777_7777)).as_bytes());
        put(148, b"        ");
        put(156, &[kind as u8]);
        put(157, &target[..target.len().min(MAX_NAME_BYTES)]);
        put(257, b"ustar\x0000");
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.write_all(&block)
    }

    fn pad(&mut self, size: u64) -> io::Result<()> {
        let over = usize::try_from(size % BLOCK as u64).unwrap_or(0);
        if over > 0 { self.0.write_all(&[0; BLOCK][over..]) } else { Ok(()) }
    }
}
