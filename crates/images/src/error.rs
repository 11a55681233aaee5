//! Reasons why an image cannot be used, with the next step for the user.
//!
//! The caller adds the path of the image.

use std::io;
use std::path::PathBuf;

use crate::limits::MAX_SHOWN_CHARACTERS;

/// The hint that explains how to save an image to disk.
pub const SAVE_HINT: &str = "images are read from disk, not fetched from a registry: save one with `podman save \
                             --format oci-archive -o IMAGE.tar NAME:TAG`, `docker save -o IMAGE.tar NAME:TAG` (Docker \
                             25 or later) or `skopeo copy … oci-archive:IMAGE.tar`, and set `image` to the path of the \
                             archive";

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("cannot read the image")]
    Unreadable(#[source] io::Error),
    #[error("not an OCI image: {0}")]
    NotAnImage(String),
    #[error("the image is a compressed archive")]
    Compressed,
    #[error("the image is an archive in the old Docker format, without index.json")]
    Legacy,
    #[error("the image is damaged: {0}")]
    Damaged(String),
    #[error("the image does not support {wanted}, only {found}")]
    Platform { wanted: String, found: String },
    #[error("the file or directory contains {0} images for this machine")]
    Several(usize),
    #[error("the image has a layer of the unsupported type {0}")]
    LayerType(String),
    #[error("the image exceeds a limit: {0}")]
    TooLarge(String),
    #[error("cannot unpack {path} from the image: {problem}")]
    Entry { path: String, problem: String },
    #[error("cannot write the files of the image")]
    Unwritable(#[source] io::Error),
    #[error("no cache directory is known to unpack the image into")]
    NoCache,
    #[error("cannot unpack the image into {}", path.display())]
    Cache { path: PathBuf, source: io::Error },
    #[error("timeout: another process is still unpacking the image")]
    Busy,
}

impl ImageError {
    /// Returns the next step for the user.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unreadable(_) => "check the path and its permissions",
            Self::NotAnImage(_) | Self::Legacy => SAVE_HINT,
            Self::Compressed => "decompress it with `gunzip` or `unzstd`",
            Self::Damaged(_) => "save the image again: its content does not match its own digests and descriptions",
            Self::Platform { .. } => "save the image for this machine: pull or build it with `--platform`",
            Self::Several(_) => "save a single image under a single name",
            Self::LayerType(_) => {
                "supported layers are tar, uncompressed or with gzip or zstd: save the image again with `skopeo copy \
                 --dest-compress-format gzip --dest-force-compress-format …`, or build it with \
                 `compression=gzip,force-compression=true`"
            }
            Self::TooLarge(_) | Self::Entry { .. } => {
                "use another image, or unpack it yourself and set the directory: root = \"DIRECTORY\""
            }
            Self::NoCache => "set RINGFENCE_CACHE_DIR or HOME",
            Self::Cache { .. } | Self::Unwritable(_) => {
                "check the permissions and the free space of the cache directory, or set RINGFENCE_CACHE_DIR"
            }
            Self::Busy => "wait until that process has finished, or end it",
        }
    }
}

/// Returns the start of a text of an image in printable form, for one line of a terminal.
pub(crate) fn printable(text: &str) -> String {
    let escape = |letter: char| match letter {
        '\'' | '"' => letter.to_string(),
        letter => letter.escape_debug().to_string(),
    };
    text.chars().take(MAX_SHOWN_CHARACTERS).map(escape).collect()
}
