//! OCI images on disk, unpacked to the root file systems of templates.
//!
//! An image is a layout directory, or a tar archive of one; nothing is fetched. It is hostile: every blob is checked
//! against its digest and size, all that it can make grow has a bound ([`bounds`]), and nothing is ever written outside
//! of the new directory ([`tree`]). What is unpacked belongs to whoever unpacks it, and nothing of it is run here.
//!
//! Each is unpacked once, into the cache, under the digest of its manifest; see [`place`].

mod blobs;
mod bounds;
pub mod cache;
mod choice;
mod digest;
mod document;
mod environment;
mod error;
#[cfg(fuzzing)]
pub mod fuzzing;
mod layer;
mod members;
mod place;
mod tree;
mod zstd;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

pub use error::{ImageError, SAVE};

use blobs::Blobs;
use bounds::{Bounds, LAYERS, TOP_NAMES};
use place::Place;
use tree::Tree;

/// A root file system, with the variables that its image is meant to have.
#[derive(Debug, PartialEq, Eq)]
pub struct Unpacked {
    pub root: PathBuf,
    pub environment: BTreeMap<String, String>,
}

/// Unpacks an image into the cache, unless it is there already. May take long.
pub fn unpack(image: &Path, cache: &Path) -> Result<Unpacked, ImageError> {
    unpack_within(image, cache, Bounds::default())
}

fn unpack_within(image: &Path, cache: &Path, bounds: Bounds) -> Result<Unpacked, ImageError> {
    let blobs = Blobs::open(image)?;
    let chosen = choice::choose(&blobs, choice::this_machine())?;
    let environment = environment::of(&chosen.environment)?;
    let packed = chosen.layers.iter().fold(0_u64, |sum, layer| sum.saturating_add(layer.size));
    if chosen.layers.len() > LAYERS || packed > bounds.bytes {
        let problem = format!("it has {} layers of {packed} bytes", chosen.layers.len());
        return Err(ImageError::TooLarge(problem));
    }
    let root = Place::new(cache, &chosen.digest).make(|directory| {
        let (shown, begun) = (image.display(), Instant::now());
        tracing::info!("unpacking the image {shown}, which is done once");
        let mut tree = Tree::new(directory, bounds)?;
        let mut left = bounds.bytes;
        for layer in &chosen.layers {
            left = layer::apply(&blobs, layer, left, &mut tree)?;
        }
        if tree.top_names().map_err(ImageError::Unwritable)? > TOP_NAMES {
            return Err(ImageError::TooLarge(format!("there are more than {TOP_NAMES} names at its top")));
        }
        tracing::info!("the image {shown} was unpacked within {} s", begun.elapsed().as_secs() + 1);
        Ok(())
    })?;
    Ok(Unpacked { root, environment })
}

#[cfg(test)]
mod tests;
