//! The parts of an image by their names, in a layout directory or in a tar archive of one.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;
use tar::EntryType;

use super::bounds::{ARCHIVE_MEMBERS, DOCUMENT_BYTES};
use super::digest::{Digest, Hashing};
use super::document::Descriptor;
use super::error::ImageError;
use super::members;

pub(super) enum Blobs {
    Directory(OwnedFd),
    /// With where each part begins, and its size.
    Archive(File, BTreeMap<String, (u64, u64)>),
}

/// Never waits, as for a pipe that nobody writes.
const CAREFUL: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

const INDEX: &str = "index.json";
/// What archives that are no layout have in its place.
const LEGACY: &str = "manifest.json";
const BLOBS: &str = "blobs/sha256/";

impl Blobs {
    pub(super) fn open(image: &Path) -> Result<Self, ImageError> {
        let unreadable = |errno: Errno| ImageError::Unreadable(errno.into());
        let opened = openat(CWD, image, CAREFUL, Mode::empty()).map_err(unreadable)?;
        match FileType::from_raw_mode(fstat(&opened).map_err(unreadable)?.st_mode) {
            FileType::Directory => Ok(Self::Directory(opened)),
            FileType::RegularFile => Self::archive(opened.into()),
            _ => Err(ImageError::NotAnImage("it is neither a directory nor a file".into())),
        }
    }

    fn archive(file: File) -> Result<Self, ImageError> {
        let mut start = [0; 4];
        let length = file.read_at(&mut start, 0).map_err(ImageError::Unreadable)?;
        if is_gzip(&start[..length]) || is_zstd(&start[..length]) {
            return Err(ImageError::Compressed);
        }
        // What is wrong with it by the rules of tar would tell nobody more.
        let broken = |_| ImageError::NotAnImage("it is neither a layout directory nor a tar archive of one".into());
        let mut parts = BTreeMap::new();
        let mut archive = tar::Archive::new(&file);
        let mut count = 0;
        members::each(archive.entries_with_seek().map_err(broken)?, broken, |member, _| {
            count += 1;
            if count > ARCHIVE_MEMBERS {
                return Err(ImageError::TooLarge(format!("its archive has more than {ARCHIVE_MEMBERS} files")));
            }
            let name = str::from_utf8(&member.path).unwrap_or_default();
            let name = name.strip_prefix("./").unwrap_or(name);
            let is_part = name == INDEX || name == LEGACY || name.starts_with(BLOBS);
            if is_part && matches!(member.kind, EntryType::Regular | EntryType::Continuous) {
                parts.insert(name.to_owned(), (member.position, member.size));
            }
            Ok(())
        })?;
        Ok(Self::Archive(file, parts))
    }

    /// Reads the document from which all others are found. Nothing says what it should be.
    pub(super) fn index(&self) -> Result<Vec<u8>, ImageError> {
        match self.find(INDEX)? {
            Some((index, size)) => read(index, size),
            None if self.find(LEGACY)?.is_some() => Err(ImageError::Legacy),
            None => Err(ImageError::NotAnImage("it has no index.json".into())),
        }
    }

    /// Reads a document; only if it is what its descriptor says.
    pub(super) fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>, ImageError> {
        let (part, size) = self.blob(descriptor)?;
        let content = read(part, size)?;
        if Digest::of(&content) == descriptor.digest { Ok(content) } else { Err(altered(&descriptor.digest)) }
    }

    /// Opens a blob of the size that its descriptor says. Whether it is the one that was meant shows at its end:
    /// [`check`].
    pub(super) fn stream(&self, descriptor: &Descriptor) -> Result<Hashing<Part>, ImageError> {
        self.blob(descriptor).map(|(part, _)| Hashing::new(part))
    }

    fn blob(&self, Descriptor { digest, size, .. }: &Descriptor) -> Result<(Part, u64), ImageError> {
        let found = self.find(&format!("{BLOBS}{}", digest.hexadecimal()))?;
        let (part, is) = found.ok_or_else(|| ImageError::Damaged(format!("{digest} is missing")))?;
        if is == *size {
            return Ok((part, is));
        }
        Err(ImageError::Damaged(format!("{digest} has {is} bytes, and should have {size}")))
    }

    fn find(&self, name: &str) -> Result<Option<(Part, u64)>, ImageError> {
        match self {
            Self::Archive(file, parts) => {
                let Some((at, left)) = parts.get(name).copied() else { return Ok(None) };
                let file = file.try_clone().map_err(ImageError::Unreadable)?;
                Ok(Some((Part { file, at, left }, left)))
            }
            Self::Directory(directory) => {
                let rules = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
                let unreadable = |errno: Errno| ImageError::Unreadable(errno.into());
                let file = match openat2(directory, name, CAREFUL, Mode::empty(), rules) {
                    Ok(file) => file,
                    Err(Errno::NOENT) => return Ok(None),
                    Err(errno) => return Err(unreadable(errno)),
                };
                let stat = fstat(&file).map_err(unreadable)?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return Err(ImageError::NotAnImage(format!("{name} is no file")));
                }
                let left = u64::try_from(stat.st_size).unwrap_or_default();
                Ok(Some((Part { file: file.into(), at: 0, left }, left)))
            }
        }
    }
}

/// Whether all of a blob is what its descriptor says.
pub(super) fn check(stream: Hashing<Part>, digest: &Digest) -> Result<(), ImageError> {
    if stream.finish().map_err(ImageError::Unreadable)? == *digest { Ok(()) } else { Err(altered(digest)) }
}

fn altered(digest: &Digest) -> ImageError {
    ImageError::Damaged(format!("what is called {digest} has another digest"))
}

fn read(part: Part, size: u64) -> Result<Vec<u8>, ImageError> {
    if size > DOCUMENT_BYTES {
        return Err(ImageError::TooLarge(format!("a manifest has {size} bytes")));
    }
    let mut content = Vec::new();
    part.take(size).read_to_end(&mut content).map_err(ImageError::Unreadable)?;
    Ok(content)
}

pub(super) fn is_gzip(start: &[u8]) -> bool {
    start.starts_with(&[0x1f, 0x8b])
}

/// Of a frame, or of a note before it.
pub(super) fn is_zstd(start: &[u8]) -> bool {
    start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) || matches!(start, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// A stretch of a file, read without moving its cursor.
pub(super) struct Part {
    file: File,
    at: u64,
    left: u64,
}

impl Read for Part {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let length = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += length as u64;
        self.left -= length as u64;
        Ok(length)
    }
}
