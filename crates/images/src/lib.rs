//! Unpacks OCI images on disk into root file systems for templates.
//!
//! An image is an OCI layout directory or a tar archive of one; nothing is fetched from a registry. Images are untrusted:
//! every blob is checked against its digest and size, everything that an image can make grow has a limit ([`limits`]),
//! and nothing is written outside of the target directory ([`rootfs`]). Unpacked files belong to the user who unpacks
//! them. No program of an image runs here.
//!
//! Each image is unpacked once, into the cache, under the digest of its manifest ([`cached_image`]).

pub mod cache;
mod cached_image;
mod compression;
mod environment;
mod error;
#[cfg(fuzzing)]
pub mod fuzzing;
mod layer;
mod layout;
mod limits;
mod rootfs;
mod tar_entries;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

pub use error::{ImageError, SAVE_HINT};

use cached_image::CachedImage;
use layout::Layout;
use limits::{Limits, MAX_LAYERS, MAX_TOP_LEVEL_NAMES};
use rootfs::Rootfs;

/// An unpacked image: its root file system and its environment variables.
#[derive(Debug, PartialEq, Eq)]
pub struct UnpackedImage {
    pub root: PathBuf,
    pub environment: BTreeMap<String, String>,
}

/// Unpacks an image into the cache, unless the cache has it already. May block for a long time.
pub fn unpack(image: &Path, cache: &Path) -> Result<UnpackedImage, ImageError> {
    unpack_with_limits(image, cache, Limits::default())
}

fn unpack_with_limits(image: &Path, cache: &Path, limits: Limits) -> Result<UnpackedImage, ImageError> {
    let layout = Layout::open(image)?;
    let selected = layout::select_image(&layout, layout::host_architecture())?;
    let environment = environment::parse(&selected.environment)?;
    let layers = selected.layers.len();
    let packed_bytes = selected.layers.iter().fold(0_u64, |sum, layer| sum.saturating_add(layer.size));
    if layers > MAX_LAYERS || packed_bytes > limits.bytes {
        let max_bytes = limits.bytes;
        return Err(ImageError::TooLarge(format!(
            "{layers} layers with {packed_bytes} bytes; the limits are {MAX_LAYERS} layers and {max_bytes} bytes"
        )));
    }
    let root = CachedImage::new(cache, &selected.digest).get_or_unpack(|directory| {
        let (path, started) = (image.display(), Instant::now());
        tracing::info!("unpacking the image {path} into the cache");
        let mut rootfs = Rootfs::open(directory, limits)?;
        let mut bytes_left = limits.bytes;
        for layer in &selected.layers {
            bytes_left = layer::apply(&layout, layer, bytes_left, &mut rootfs)?;
        }
        if rootfs.count_top_level_names().map_err(ImageError::Unwritable)? > MAX_TOP_LEVEL_NAMES {
            return Err(ImageError::TooLarge(format!("the root directory has more than {MAX_TOP_LEVEL_NAMES} names")));
        }
        tracing::info!("unpacked the image {path} within {} s", started.elapsed().as_secs() + 1);
        Ok(())
    })?;
    Ok(UnpackedImage { root, environment })
}
