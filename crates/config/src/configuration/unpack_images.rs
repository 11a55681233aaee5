//! Unpacks the OCI images of templates into the cache directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_core::{Root, Template, Templates};
use ringfence_images::ImageError;

/// An image of a template that cannot be unpacked.
#[derive(Debug, thiserror::Error)]
#[error("templates.{template}.image: cannot use {}", image.display())]
pub struct ImageUnpackError {
    template: Arc<str>,
    image: PathBuf,
    source: ImageError,
}

impl ImageUnpackError {
    pub fn hint(&self) -> &'static str {
        self.source.hint()
    }
}

/// Unpacks the images of all templates that have one. May take long.
pub(super) fn unpack_images(templates: &Templates, cache: Option<&Path>) -> Result<Templates, ImageUnpackError> {
    let unpacked = templates.iter().cloned().map(|template| unpack_image(template, cache));
    unpacked.collect::<Result<_, _>>().map(Templates::new)
}

fn unpack_image(mut template: Template, cache: Option<&Path>) -> Result<Template, ImageUnpackError> {
    let Some(image) = &template.image else { return Ok(template) };
    let unpacked = cache.ok_or(ImageError::NoCache).and_then(|cache| ringfence_images::unpack(image, cache));
    let unpacked = unpacked.map_err(|source| ImageUnpackError {
        template: Arc::clone(&template.name),
        image: image.clone(),
        source,
    })?;
    template.root = Root::Directory(unpacked.root);
    // Variables of the template take precedence over those of the image.
    for (name, value) in unpacked.environment {
        template.environment.entry(name).or_insert(value);
    }
    Ok(template)
}
