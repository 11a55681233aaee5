//! How much an image may be.

/// What may come of one image, all layers together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Of layers once they are decompressed, files that later layers replace among them.
    pub(super) bytes: u64,
    /// Files, directories and links, and whiteouts of them.
    pub(super) entries: u64,
    /// Names that are looked at to take away what whiteouts hide: each may stand over all that there is.
    pub(super) visits: u64,
}

impl Default for Bounds {
    /// Far more than images of languages have.
    fn default() -> Self {
        Self { bytes: 32 << 30, entries: 2_000_000, visits: 20_000_000 }
    }
}

/// Engines allow 127.
pub(super) const LAYERS: usize = 512;

/// Names at the top of a root file system: each is a mount of its own in every sandbox.
pub(super) const TOP_NAMES: usize = 512;

/// An index, manifest or configuration; registries allow as much.
pub(super) const DOCUMENT_BYTES: u64 = 4 << 20;

/// Indexes and manifests that are read until one is chosen.
pub(super) const DOCUMENTS: usize = 64;

/// Indexes within indexes.
pub(super) const INDEX_DEPTH: usize = 3;

/// Files of an archive: a few for each layer.
pub(super) const ARCHIVE_MEMBERS: usize = 100_000;

/// What stands before a file in an archive: a long name, or attributes.
pub(super) const EXTENSION_BYTES: u64 = 1 << 20;

/// `PATH_MAX`.
pub(super) const PATH_BYTES: usize = 4096;

/// Directories within directories, wherever links lead: whoever removes the tree has each open.
pub(super) const DEPTH: u32 = 128;

/// All variables of an image: they are sent with every command.
pub(super) const ENVIRONMENT_BYTES: usize = 64 << 10;
