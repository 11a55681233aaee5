//! Limits on the memory, disk space and work that an image can cause.

/// Limits for all layers of one image together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Maximum size of all decompressed layers, including files that later layers replace.
    pub(crate) bytes: u64,
    /// Maximum number of files, directories, links and whiteouts.
    pub(crate) entries: u64,
    /// Maximum number of names that are inspected to remove files that a whiteout hides. One whiteout may hide a whole
    /// tree, so `entries` does not limit this work.
    pub(crate) visits: u64,
}

impl Default for Limits {
    /// Returns limits far above the sizes of images for common languages.
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

/// Maximum number of files in the archive of an image layout. An archive has a few files for each layer.
pub(crate) const MAX_ARCHIVE_FILES: usize = 100_000;

/// Maximum size of a tar header extension: the long name, or the attributes, of the next entry.
pub(crate) const MAX_TAR_EXTENSION_BYTES: u64 = 1 << 20;

/// Maximum length of a path (`PATH_MAX`).
pub(crate) const MAX_PATH_BYTES: usize = 4096;

/// Maximum nesting of directories, also through links. Removing a tree needs one open descriptor for each level.
pub(crate) const MAX_DEPTH: u32 = 128;

/// Maximum size of all environment variables of an image. The host sends them with every command.
pub(crate) const MAX_ENVIRONMENT_BYTES: usize = 64 << 10;

/// Maximum length of a text from an image in an error message.
pub(crate) const MAX_SHOWN_CHARACTERS: usize = 256;
