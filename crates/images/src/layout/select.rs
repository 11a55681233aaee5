//! Selection of the image for this machine from the images of a layout.

use std::collections::BTreeSet;

use super::Layout;
use super::digest::Digest;
use super::documents::{Descriptor, Document, ImageConfig, Platform};
use crate::error::{ImageError, printable};
use crate::limits::{MAX_DOCUMENTS, MAX_INDEX_DEPTH};

/// The selected image.
#[derive(Debug)]
pub(crate) struct SelectedImage {
    /// The digest of the manifest, which covers all parts of the image.
    pub(crate) digest: Digest,
    /// The layers from bottom to top.
    pub(crate) layers: Vec<Descriptor>,
    /// The environment variables as `NAME=VALUE`.
    pub(crate) environment: Vec<String>,
}

const INDEX_TYPES: [&str; 2] =
    ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];
const MANIFEST_TYPES: [&str; 2] =
    ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];
const CONFIG_TYPES: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];

/// The annotation of documents that describe another manifest (such as attestations) and are not images.
const REFERENCE_ANNOTATION: &str = "vnd.docker.reference.type";

/// Maximum number of platforms to list in an error.
const MAX_LISTED_PLATFORMS: usize = 16;

/// Returns the architecture of this machine in the notation of OCI.
pub(crate) fn host_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        architecture => architecture,
    }
}

/// Selects the only image for Linux on this architecture.
pub(crate) fn select_image(layout: &Layout, architecture: &str) -> Result<SelectedImage, ImageError> {
    let Document::Index(manifests) = Document::parse(&layout.read_index()?)? else {
        return Err(ImageError::NotAnImage("index.json is not an image index".into()));
    };
    let mut search = Search { layout, architecture, documents: 0, other_platforms: BTreeSet::new() };
    let mut selected: Option<SelectedImage> = None;
    let mut further = BTreeSet::new();
    // The same image may be listed under several names. A choice between different images would be a guess.
    for descriptor in generic_first(manifests) {
        if let Some(image) = search.find(&descriptor, 0)? {
            match &selected {
                None => selected = Some(image),
                Some(first) if first.digest == image.digest => {}
                Some(_) => drop(further.insert(image.digest.to_string())),
            }
        }
    }
    if further.is_empty() {
        selected.ok_or_else(|| search.not_found())
    } else {
        Err(ImageError::Several(further.len() + 1))
    }
}

/// Sorts manifests for every processor of an architecture before manifests for newer processors only.
fn generic_first(mut manifests: Vec<Descriptor>) -> Vec<Descriptor> {
    let variant = |descriptor: &Descriptor| descriptor.platform.as_ref().and_then(|platform| platform.variant.clone());
    manifests
        .sort_by_key(|descriptor| variant(descriptor).is_some_and(|variant| !variant.is_empty() && variant != "v8"));
    manifests
}

struct Search<'a> {
    layout: &'a Layout,
    architecture: &'a str,
    /// Number of documents that were read.
    documents: usize,
    /// Platforms of images for other machines.
    other_platforms: BTreeSet<String>,
}

impl Search<'_> {
    /// Returns the image that a descriptor leads to, if it is an image for this machine.
    fn find(&mut self, descriptor: &Descriptor, depth: usize) -> Result<Option<SelectedImage>, ImageError> {
        let is_of_type = |types: &[&str]| types.contains(&&*descriptor.media_type);
        let is_reference = descriptor.annotations.iter().flatten().any(|(name, _)| name == REFERENCE_ANNOTATION);
        let is_supported = descriptor.platform.as_ref().is_none_or(|platform| self.check_platform(platform));
        if is_reference || !is_supported || !(is_of_type(&INDEX_TYPES) || is_of_type(&MANIFEST_TYPES)) {
            return Ok(None);
        }
        self.documents += 1;
        if self.documents > MAX_DOCUMENTS || depth > MAX_INDEX_DEPTH {
            return Err(ImageError::TooLarge("too many or too deeply nested indexes and manifests".into()));
        }
        match Document::parse(&self.layout.read_document(descriptor)?)? {
            Document::Index(manifests) if is_of_type(&INDEX_TYPES) => {
                for descriptor in generic_first(manifests) {
                    if let Some(image) = self.find(&descriptor, depth + 1)? {
                        return Ok(Some(image));
                    }
                }
                Ok(None)
            }
            Document::Manifest { config, layers } if is_of_type(&MANIFEST_TYPES) => {
                // Registries also store other artifacts in the form of images.
                if !CONFIG_TYPES.contains(&&*config.media_type) {
                    return Ok(None);
                }
                let config = ImageConfig::parse(&self.layout.read_document(&config)?)?;
                if !self.check_platform(&config.platform) {
                    return Ok(None);
                }
                let digest = descriptor.digest.clone();
                Ok(Some(SelectedImage { digest, layers, environment: config.environment() }))
            }
            _ => Err(ImageError::Damaged(format!("the content of {} does not match its type", descriptor.digest))),
        }
    }

    /// Returns whether a platform is the one of this machine; remembers other platforms for the error.
    fn check_platform(&mut self, platform: &Platform) -> bool {
        let is_supported = platform.os == "linux" && platform.architecture == self.architecture;
        if !is_supported && platform.os != "unknown" {
            self.other_platforms.insert(format!("{}/{}", platform.os, platform.architecture));
        }
        is_supported
    }

    fn not_found(&self) -> ImageError {
        let platforms = self.other_platforms.iter().take(MAX_LISTED_PLATFORMS);
        let found: Vec<String> = platforms.map(|platform| printable(platform)).collect();
        if found.is_empty() {
            return ImageError::NotAnImage("index.json lists no image".into());
        }
        ImageError::Platform { wanted: format!("linux/{}", self.architecture), found: found.join(", ") }
    }
}
