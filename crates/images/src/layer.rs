//! One layer: what it adds to those below it, and what it takes away.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read};

use flate2::bufread::MultiGzDecoder;
use rustix::io::Errno;
use tar::EntryType;

use super::blobs::{self, Blobs, is_gzip, is_zstd};
use super::document::Descriptor;
use super::error::{ImageError, plain};
use super::members::{self, Member};
use super::tree::{Inside, Tree};
use super::zstd;

/// Tar, plain or compressed: how is told by the content, since what saves images is not exact about it.
const TYPES: [&str; 8] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
];

/// Before the name of what is taken away.
const WHITEOUT: &[u8] = b".wh.";
/// Takes away all that lower layers have in its directory.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Notes of a file system to itself.
const NOTES: &[u8] = b".wh..wh.";

/// Applies it to those below; says what is left of the bytes that an image may have.
pub(super) fn apply(blobs: &Blobs, layer: &Descriptor, left: u64, tree: &mut Tree) -> Result<u64, ImageError> {
    if !TYPES.contains(&&*layer.media_type) {
        return Err(ImageError::LayerType(plain(&layer.media_type)));
    }
    let mut stream = BufReader::with_capacity(64 << 10, blobs.stream(layer)?);
    let start = stream.fill_buf().map_err(ImageError::Unreadable)?;
    let left = if is_gzip(start) {
        unpack(MultiGzDecoder::new(&mut stream), left, tree)?
    } else if is_zstd(start) {
        unpack(zstd::Frames::new(&mut stream), left, tree)?
    } else {
        unpack(&mut stream, left, tree)?
    };
    // What was buffered has been read, and so hashed.
    blobs::check(stream.into_inner(), &layer.digest)?;
    Ok(left)
}

pub(super) fn unpack(content: impl Read, left: u64, tree: &mut Tree) -> Result<u64, ImageError> {
    tree.begin_layer();
    let mut metered = Metered { from: content, left, is_exceeded: false };
    let mut archive = tar::Archive::new(&mut metered);
    let entries = archive.entries().map_err(|error| damaged(&error));
    let done = entries.and_then(|entries| {
        members::each(entries, |error| damaged(&error), |member, content| add(tree, member, content))
    });
    if metered.is_exceeded {
        return Err(ImageError::TooLarge("its layers have more bytes than an image may have".into()));
    }
    done.map(|()| metered.left)
}

fn add(tree: &mut Tree, member: &Member, content: &mut dyn Read) -> Result<(), ImageError> {
    tree.count().ok_or_else(|| ImageError::TooLarge("it has more files than an image may have".into()))?;
    let refused = |problem: io::Error| failed(member, problem);
    let inside = Inside::parse(&member.path).map_err(|problem| member.refused(problem))?;
    let Some(name) = inside.name() else { return Ok(()) };
    let name = std::os::unix::ffi::OsStrExt::as_bytes(name);
    if name == OPAQUE {
        return tree.hide_all(&inside).map_err(refused);
    }
    if name.starts_with(NOTES) {
        return Ok(());
    }
    if let Some(hidden) = name.strip_prefix(WHITEOUT) {
        return tree.hide(&inside.sibling(hidden).map_err(|problem| member.refused(problem))?).map_err(refused);
    }
    let is_directory = member.path.ends_with(b"/");
    match member.kind {
        EntryType::Directory => tree.directory(&inside, member.mode).map_err(refused),
        // As the oldest archives have them.
        EntryType::Regular if is_directory => tree.directory(&inside, member.mode).map_err(refused),
        EntryType::Regular | EntryType::Continuous => {
            tree.file(&inside, member.mode, member.modified, member.size, content).map_err(refused)
        }
        EntryType::Symlink => tree.symbolic_link(&inside, &member.target).map_err(refused),
        EntryType::Link => {
            let target = Inside::parse(&member.target).map_err(|problem| member.refused(problem))?;
            tree.hard_link(&inside, &target).map_err(refused)
        }
        EntryType::GNUSparse => Err(member.refused("sparse files are not supported")),
        // A sandbox has devices of its own, and nobody waits at the pipes and sockets of an image.
        _ => Ok(()),
    }
}

/// Whose fault it is: the disk's, the stream's or the entry's own.
fn failed(member: &Member, error: io::Error) -> ImageError {
    match (Errno::from_io_error(&error), error.kind()) {
        (Some(Errno::NOSPC | Errno::DQUOT | Errno::IO | Errno::ROFS), _) => ImageError::Unwritable(error),
        (None, ErrorKind::InvalidData | ErrorKind::InvalidInput | ErrorKind::UnexpectedEof) => damaged(&error),
        _ => member.refused(error.to_string()),
    }
}

fn damaged(error: &io::Error) -> ImageError {
    ImageError::Damaged(format!("a layer cannot be read: {}", plain(&error.to_string())))
}

/// Reads until there is more than there may be.
struct Metered<R> {
    from: R,
    left: u64,
    is_exceeded: bool,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.from.read(buffer)?;
        let Some(left) = self.left.checked_sub(length as u64) else {
            self.is_exceeded = true;
            return Err(io::Error::other("it is too large"));
        };
        self.left = left;
        Ok(length)
    }
}
