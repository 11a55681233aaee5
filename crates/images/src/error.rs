//! Why an image cannot be used, and what to do about it.

use std::io;
use std::path::PathBuf;

/// How an image gets onto the disk.
pub const SAVE: &str = "images are read from disk and never fetched: save one with `podman save --format \
                               oci-archive -o IMAGE.tar NAME:TAG`, `docker save -o IMAGE.tar NAME:TAG` (Docker 25 or \
                               later) or `skopeo copy … oci-archive:IMAGE.tar`, and give the path of the archive";

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("it cannot be read")]
    Unreadable(#[source] io::Error),
    #[error("it is no OCI image: {0}")]
    NotAnImage(String),
    #[error("it is a compressed archive")]
    Compressed,
    #[error("it is an archive of an older kind, without an index.json")]
    Legacy,
    #[error("it is damaged: {0}")]
    Damaged(String),
    #[error("it has nothing for {wanted}; there is {found}")]
    Platform { wanted: String, found: String },
    #[error("it holds {0} images")]
    Several(usize),
    #[error("it has a layer that cannot be read, of the type {0}")]
    LayerType(String),
    #[error("it is too large: {0}")]
    TooLarge(String),
    #[error("it has an entry that cannot be unpacked, {path}: {problem}")]
    Entry { path: String, problem: String },
    #[error("what is in it cannot be written")]
    Unwritable(#[source] io::Error),
    #[error("there is no directory to unpack it into")]
    NoCache,
    #[error("it cannot be unpacked into {}", path.display())]
    Cache { path: PathBuf, source: io::Error },
    #[error("another process is still unpacking it")]
    Busy,
}

/// A text of an image, in one line of a terminal, whatever it is made of.
pub(crate) fn plain(text: &str) -> String {
    let is_plain = |letter: char| matches!(letter, '\'' | '"');
    let shown = |letter: char| if is_plain(letter) { letter.to_string() } else { letter.escape_debug().to_string() };
    text.chars().take(256).map(shown).collect()
}

impl ImageError {
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unreadable(_) => "check the path and who may read it",
            Self::NotAnImage(_) | Self::Legacy => SAVE,
            Self::Compressed => "decompress it, with `gunzip` or `unzstd`",
            Self::Damaged(_) => "save the image again: what is in it is not what it says itself",
            Self::Platform { .. } => "save the image for this machine, with `--platform` where it was pulled or built",
            Self::Several(_) => "save one image alone, under one name",
            Self::LayerType(_) => {
                "layers are tar, plain or with gzip or zstd: save the image again with `skopeo copy \
                 --dest-compress-format gzip --dest-force-compress-format …`, or build it with \
                 `compression=gzip,force-compression=true`"
            }
            Self::TooLarge(_) | Self::Entry { .. } => {
                "use another image, or unpack it yourself and name the directory: root = \"DIRECTORY\""
            }
            Self::NoCache => "set RINGFENCE_CACHE_DIR, or HOME",
            Self::Cache { .. } | Self::Unwritable(_) => {
                "check who may write there and what space is left, or set RINGFENCE_CACHE_DIR"
            }
            Self::Busy => "wait for it, or end it",
        }
    }
}
