//! Applies one layer to the root file system: adds its files and removes the files that its whiteouts hide.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt as _;

use flate2::bufread::MultiGzDecoder;
use rustix::io::Errno;
use tar::EntryType;

use crate::compression::{Compression, ZstdReader};
use crate::error::{ImageError, printable};
use crate::layout::{Descriptor, Layout, check_digest};
use crate::rootfs::{EntryPath, Rootfs};
use crate::tar_entries::{self, TarEntry};

/// Types of tar layers. The content decides about the compression, because tools that save images do not always state it
/// correctly.
const LAYER_TYPES: [&str; 8] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
];

/// Prefix of a whiteout: the file with the rest of the name is hidden.
const WHITEOUT_PREFIX: &[u8] = b".wh.";
/// Name of an opaque whiteout: all files of lower layers in its directory are hidden.
const OPAQUE_WHITEOUT: &[u8] = b".wh..wh..opq";
/// Prefix of metadata of the aufs file system, which is ignored.
const AUFS_METADATA_PREFIX: &[u8] = b".wh..wh.";

const BUFFER_BYTES: usize = 64 << 10;

/// Applies a layer. `bytes_left` is the number of decompressed bytes that the image may still have; returns the rest.
pub(crate) fn apply(
    layout: &Layout,
    layer: &Descriptor,
    bytes_left: u64,
    rootfs: &mut Rootfs,
) -> Result<u64, ImageError> {
    if !LAYER_TYPES.contains(&&*layer.media_type) {
        return Err(ImageError::LayerType(printable(&layer.media_type)));
    }
    let mut blob = BufReader::with_capacity(BUFFER_BYTES, layout.stream_blob(layer)?);
    let start = blob.fill_buf().map_err(ImageError::Unreadable)?;
    let bytes_left = match Compression::detect(start) {
        Some(Compression::Gzip) => apply_tar(MultiGzDecoder::new(&mut blob), bytes_left, rootfs)?,
        Some(Compression::Zstd) => apply_tar(ZstdReader::new(&mut blob), bytes_left, rootfs)?,
        None => apply_tar(&mut blob, bytes_left, rootfs)?,
    };
    // Discarding the buffer is safe: its bytes went through the hash when they were read.
    check_digest(blob.into_inner(), &layer.digest)?;
    Ok(bytes_left)
}

/// Applies a decompressed layer; see [`apply`].
pub(crate) fn apply_tar(content: impl Read, bytes_left: u64, rootfs: &mut Rootfs) -> Result<u64, ImageError> {
    rootfs.begin_layer();
    let mut limited = LimitedReader { inner: content, bytes_left, is_exceeded: false };
    let mut archive = tar::Archive::new(&mut limited);
    let entries = archive.entries().map_err(|error| damaged(&error));
    let result = entries.and_then(|entries| {
        let invalid = |error: io::Error| damaged(&error);
        tar_entries::for_each(entries, invalid, |entry, content| apply_entry(rootfs, entry, content))
    });
    if limited.is_exceeded {
        return Err(ImageError::TooLarge("the decompressed layers have too many bytes".into()));
    }
    result.map(|()| limited.bytes_left)
}

fn apply_entry(rootfs: &mut Rootfs, entry: &TarEntry, content: &mut dyn Read) -> Result<(), ImageError> {
    rootfs.count_entry().ok_or_else(|| ImageError::TooLarge("the layers have too many files".into()))?;
    let failed = |error: io::Error| entry_error(entry, error);
    let path = EntryPath::parse(&entry.path).map_err(|problem| entry.error(problem))?;
    let Some(name) = path.name() else { return Ok(()) };
    let name = name.as_bytes();
    if name == OPAQUE_WHITEOUT {
        return rootfs.hide_siblings(&path).map_err(failed);
    }
    if name.starts_with(AUFS_METADATA_PREFIX) {
        return Ok(());
    }
    if let Some(hidden) = name.strip_prefix(WHITEOUT_PREFIX) {
        let hidden = path.sibling(hidden).map_err(|problem| entry.error(problem))?;
        return rootfs.hide(&hidden).map_err(failed);
    }
    let has_slash = entry.path.ends_with(b"/");
    match entry.kind {
        EntryType::Directory => rootfs.add_directory(&path, entry.mode).map_err(failed),
        // Very old archives have directories in this form.
        EntryType::Regular if has_slash => rootfs.add_directory(&path, entry.mode).map_err(failed),
        EntryType::Regular | EntryType::Continuous => {
            rootfs.add_file(&path, entry.mode, entry.modified_s, entry.size, content).map_err(failed)
        }
        EntryType::Symlink => rootfs.add_symlink(&path, &entry.link_target).map_err(failed),
        EntryType::Link => {
            let target = EntryPath::parse(&entry.link_target).map_err(|problem| entry.error(problem))?;
            rootfs.add_hard_link(&path, &target).map_err(failed)
        }
        EntryType::GNUSparse => Err(entry.error("sparse files are not supported")),
        // Devices, FIFOs and sockets are ignored: a sandbox has its own devices, and no process serves the others.
        _ => Ok(()),
    }
}

/// Attributes an error to the disk, to the archive or to the entry.
fn entry_error(entry: &TarEntry, error: io::Error) -> ImageError {
    match (Errno::from_io_error(&error), error.kind()) {
        (Some(Errno::NOSPC | Errno::DQUOT | Errno::IO | Errno::ROFS), _) => ImageError::Unwritable(error),
        (None, ErrorKind::InvalidData | ErrorKind::InvalidInput | ErrorKind::UnexpectedEof) => damaged(&error),
        _ => entry.error(error.to_string()),
    }
}

fn damaged(error: &io::Error) -> ImageError {
    ImageError::Damaged(format!("cannot read a layer: {}", printable(&error.to_string())))
}

/// A reader that fails when it has read too many bytes.
struct LimitedReader<R> {
    inner: R,
    bytes_left: u64,
    is_exceeded: bool,
}

impl<R: Read> Read for LimitedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        let Some(bytes_left) = self.bytes_left.checked_sub(length as u64) else {
            self.is_exceeded = true;
            return Err(io::Error::other("the layer is too large"));
        };
        self.bytes_left = bytes_left;
        Ok(length)
    }
}
