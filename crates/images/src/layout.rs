//! An OCI image layout: the blobs of an image by digest, in a layout directory or in a tar archive of one.

mod digest;
mod documents;
mod select;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;
use tar::EntryType;

use crate::compression::Compression;
use crate::error::ImageError;
use crate::limits::{MAX_ARCHIVE_FILES, MAX_DOCUMENT_BYTES};
use crate::tar_entries;
pub(crate) use digest::{Digest, HashingReader};
pub(crate) use documents::Descriptor;
pub(crate) use select::{host_architecture, select_image};

/// An open layout.
pub(crate) enum Layout {
    Directory(OwnedFd),
    Archive { file: File, files: BTreeMap<String, FileRange> },
}

/// The position of a file in an archive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileRange {
    offset: u64,
    size: u64,
}

/// Flags for files of an untrusted image. `NONBLOCK` avoids waiting for the writer of a FIFO.
const OPEN_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

const INDEX: &str = "index.json";
/// The index of archives in the old Docker format, which are not layouts.
const LEGACY_INDEX: &str = "manifest.json";
const BLOBS: &str = "blobs/sha256/";

impl Layout {
    pub(crate) fn open(image: &Path) -> Result<Self, ImageError> {
        let file = openat(CWD, image, OPEN_FLAGS, Mode::empty()).map_err(unreadable)?;
        match FileType::from_raw_mode(fstat(&file).map_err(unreadable)?.st_mode) {
            FileType::Directory => Ok(Self::Directory(file)),
            FileType::RegularFile => Self::open_archive(file.into()),
            _ => Err(ImageError::NotAnImage("neither a directory nor a regular file".into())),
        }
    }

    fn open_archive(file: File) -> Result<Self, ImageError> {
        let mut start = [0; 4];
        let length = file.read_at(&mut start, 0).map_err(ImageError::Unreadable)?;
        if Compression::detect(&start[..length]).is_some() {
            return Err(ImageError::Compressed);
        }
        // The exact violation of the tar format would not help the user.
        let not_tar = |_| ImageError::NotAnImage("neither an OCI layout directory nor a tar archive of one".into());
        let mut files = BTreeMap::new();
        let mut archive = tar::Archive::new(&file);
        let mut count = 0;
        tar_entries::for_each(archive.entries_with_seek().map_err(not_tar)?, not_tar, |entry, _| {
            count += 1;
            if count > MAX_ARCHIVE_FILES {
                return Err(ImageError::TooLarge(format!("the archive has more than {MAX_ARCHIVE_FILES} files")));
            }
            let name = str::from_utf8(&entry.path).unwrap_or_default();
            let name = name.strip_prefix("./").unwrap_or(name);
            let is_used = name == INDEX || name == LEGACY_INDEX || name.starts_with(BLOBS);
            if is_used && matches!(entry.kind, EntryType::Regular | EntryType::Continuous) {
                files.insert(name.to_owned(), FileRange { offset: entry.offset, size: entry.size });
            }
            Ok(())
        })?;
        Ok(Self::Archive { file, files })
    }

    /// Reads `index.json`, which leads to all other documents. It has no digest to check.
    fn read_index(&self) -> Result<Vec<u8>, ImageError> {
        match self.find(INDEX)? {
            Some(index) => read_document(index),
            None if self.find(LEGACY_INDEX)?.is_some() => Err(ImageError::Legacy),
            None => Err(ImageError::NotAnImage("index.json is missing".into())),
        }
    }

    /// Reads a document and checks its size and digest.
    fn read_document(&self, descriptor: &Descriptor) -> Result<Vec<u8>, ImageError> {
        let content = read_document(self.find_blob(descriptor)?)?;
        if Digest::of(&content) == descriptor.digest { Ok(content) } else { Err(digest_mismatch(&descriptor.digest)) }
    }

    /// Opens a blob and checks its size. The caller must check the digest at the end with [`check_digest`].
    pub(crate) fn stream_blob(&self, descriptor: &Descriptor) -> Result<HashingReader<BlobReader>, ImageError> {
        self.find_blob(descriptor).map(HashingReader::new)
    }

    fn find_blob(&self, Descriptor { digest, size, .. }: &Descriptor) -> Result<BlobReader, ImageError> {
        let found = self.find(&format!("{BLOBS}{}", digest.hexadecimal()))?;
        let blob = found.ok_or_else(|| ImageError::Damaged(format!("{digest} is missing")))?;
        if blob.remaining == *size {
            return Ok(blob);
        }
        Err(ImageError::Damaged(format!("{digest} has {} bytes instead of {size}", blob.remaining)))
    }

    fn find(&self, name: &str) -> Result<Option<BlobReader>, ImageError> {
        match self {
            Self::Archive { file, files } => {
                let Some(FileRange { offset, size }) = files.get(name).copied() else { return Ok(None) };
                let file = file.try_clone().map_err(ImageError::Unreadable)?;
                Ok(Some(BlobReader { file, offset, remaining: size }))
            }
            Self::Directory(directory) => {
                let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
                let file = match openat2(directory, name, OPEN_FLAGS, Mode::empty(), resolve) {
                    Ok(file) => file,
                    Err(Errno::NOENT) => return Ok(None),
                    Err(errno) => return Err(unreadable(errno)),
                };
                let stat = fstat(&file).map_err(unreadable)?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return Err(ImageError::NotAnImage(format!("{name} is not a regular file")));
                }
                let remaining = u64::try_from(stat.st_size).unwrap_or_default();
                Ok(Some(BlobReader { file: file.into(), offset: 0, remaining }))
            }
        }
    }
}

/// Reads the rest of a blob and checks its digest.
pub(crate) fn check_digest(blob: HashingReader<BlobReader>, digest: &Digest) -> Result<(), ImageError> {
    if blob.finish().map_err(ImageError::Unreadable)? == *digest { Ok(()) } else { Err(digest_mismatch(digest)) }
}

fn digest_mismatch(digest: &Digest) -> ImageError {
    ImageError::Damaged(format!("the content of {digest} has another digest"))
}

fn unreadable(errno: Errno) -> ImageError {
    ImageError::Unreadable(errno.into())
}

fn read_document(blob: BlobReader) -> Result<Vec<u8>, ImageError> {
    let size = blob.remaining;
    if size > MAX_DOCUMENT_BYTES {
        return Err(ImageError::TooLarge(format!(
            "an index, manifest or configuration has {size} bytes; the limit is {MAX_DOCUMENT_BYTES} bytes"
        )));
    }
    let mut content = Vec::new();
    blob.take(size).read_to_end(&mut content).map_err(ImageError::Unreadable)?;
    Ok(content)
}

/// A reader of a range of a file that does not use the file's cursor.
pub(crate) struct BlobReader {
    file: File,
    offset: u64,
    remaining: u64,
}

impl Read for BlobReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let limit = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(buffer.len());
        let length = self.file.read_at(&mut buffer[..limit], self.offset)?;
        self.offset += length as u64;
        self.remaining -= length as u64;
        Ok(length)
    }
}
