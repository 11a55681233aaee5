//! Limits on everything that an image can make grow.

/// Limits on one image, for all layers together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes of all decompressed layers, including files that later layers replace.
    pub(crate) bytes: u64,
    /// Files, directories, links and whiteouts.
    pub(crate) entries: u64,
    /// Names that are inspected to remove hidden files. One whiteout may cover a whole tree, so the number of entries
    /// does not limit this work.
    pub(crate) visits: u64,
}

impl Default for Limits {
    /// Returns limits far above the images of common languages.
    fn default() -> Self {
        Self { bytes: 32 << 30, entries: 2_000_000, visits: 20_000_000 }
    }
}

/// Maximum number of layers. Container engines allow 127.
pub(crate) const MAX_LAYERS: usize = 512;

/// Maximum number of names in the root directory. Each of them is a mount in every sandbox.
pub(crate) const MAX_TOP_LEVEL_NAMES: usize = 512;

/// Maximum size of an index, manifest or configuration. Registries have the same limit.
pub(crate) const MAX_DOCUMENT_BYTES: u64 = 4 << 20;

/// Maximum number of indexes and manifests that are read to select an image.
pub(crate) const MAX_DOCUMENTS: usize = 64;

/// Maximum nesting of indexes.
pub(crate) const MAX_INDEX_DEPTH: usize = 3;

/// Maximum number of files in an archive of a layout, which has a few for each layer.
pub(crate) const MAX_ARCHIVE_FILES: usize = 100_000;

/// Maximum size of the long name or the attributes before a tar entry.
pub(crate) const MAX_TAR_EXTENSION_BYTES: u64 = 1 << 20;

/// Maximum length of a path (`PATH_MAX`).
pub(crate) const MAX_PATH_BYTES: usize = 4096;

/// Maximum nesting of directories, also through links. Removing a tree keeps one descriptor open for each level.
pub(crate) const MAX_DEPTH: u32 = 128;

/// Maximum size of all environment variables of an image. They are sent with every command.
pub(crate) const MAX_ENVIRONMENT_BYTES: usize = 64 << 10;

/// Maximum length of a text of an image in an error.
pub(crate) const MAX_SHOWN_CHARACTERS: usize = 256;
