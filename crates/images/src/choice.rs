//! Which of the images of a layout is meant: the one for this machine.

use std::collections::BTreeSet;

use super::blobs::Blobs;
use super::bounds::{DOCUMENTS, INDEX_DEPTH};
use super::digest::Digest;
use super::document::{Configuration, Descriptor, Document, Platform};
use super::error::{ImageError, plain};

/// An image, with its parts by their digests.
#[derive(Debug)]
pub(super) struct Chosen {
    /// Of its manifest, and so of all that it is made of.
    pub(super) digest: Digest,
    /// From the lowest to the topmost.
    pub(super) layers: Vec<Descriptor>,
    /// `NAME=VALUE` each.
    pub(super) environment: Vec<String>,
}

const INDEXES: [&str; 2] =
    ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];
const MANIFESTS: [&str; 2] =
    ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];
const CONFIGURATIONS: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];

/// Marks what says something about another manifest, and is no image.
const REFERENCE: &str = "vnd.docker.reference.type";

/// The architecture of this machine, as images call it.
pub(super) fn this_machine() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The one image for Linux on this architecture.
pub(super) fn choose(blobs: &Blobs, architecture: &str) -> Result<Chosen, ImageError> {
    let Document::Index(manifests) = Document::parse(&blobs.index()?)? else {
        return Err(ImageError::NotAnImage("its index.json is no index".into()));
    };
    let mut search = Search { blobs, architecture, documents: 0, others: BTreeSet::new() };
    let mut found: Option<Chosen> = None;
    let mut others = BTreeSet::new();
    // One image may be there under several names; several images would be a guess.
    for descriptor in in_order(manifests) {
        if let Some(chosen) = search.look(&descriptor, 0)? {
            match &found {
                None => found = Some(chosen),
                Some(first) if first.digest == chosen.digest => {}
                Some(_) => drop(others.insert(chosen.digest.to_string())),
            }
        }
    }
    if others.is_empty() { found.ok_or_else(|| search.nothing()) } else { Err(ImageError::Several(others.len() + 1)) }
}

/// Those for every processor of an architecture before those for newer ones alone.
fn in_order(mut manifests: Vec<Descriptor>) -> Vec<Descriptor> {
    let variant = |descriptor: &Descriptor| descriptor.platform.as_ref().and_then(|platform| platform.variant.clone());
    manifests
        .sort_by_key(|descriptor| variant(descriptor).is_some_and(|variant| !variant.is_empty() && variant != "v8"));
    manifests
}

struct Search<'a> {
    blobs: &'a Blobs,
    architecture: &'a str,
    documents: usize,
    /// What there is for other machines.
    others: BTreeSet<String>,
}

impl Search<'_> {
    /// The image that a descriptor leads to, if it is one for this machine.
    fn look(&mut self, descriptor: &Descriptor, depth: usize) -> Result<Option<Chosen>, ImageError> {
        let is_known = |kinds: &[&str]| kinds.contains(&&*descriptor.media_type);
        let is_reference = descriptor.annotations.iter().flatten().any(|(name, _)| name == REFERENCE);
        let fits = descriptor.platform.as_ref().is_none_or(|platform| self.fits(platform));
        if is_reference || !fits || !(is_known(&INDEXES) || is_known(&MANIFESTS)) {
            return Ok(None);
        }
        self.documents += 1;
        if self.documents > DOCUMENTS || depth > INDEX_DEPTH {
            return Err(ImageError::TooLarge("it has too many indexes and manifests".into()));
        }
        match Document::parse(&self.blobs.document(descriptor)?)? {
            Document::Index(manifests) if is_known(&INDEXES) => {
                for descriptor in in_order(manifests) {
                    if let Some(chosen) = self.look(&descriptor, depth + 1)? {
                        return Ok(Some(chosen));
                    }
                }
                Ok(None)
            }
            Document::Manifest { config, layers } if is_known(&MANIFESTS) => {
                // Anything can be kept in a registry, in the shape of an image.
                if !CONFIGURATIONS.contains(&&*config.media_type) {
                    return Ok(None);
                }
                let configuration = Configuration::parse(&self.blobs.document(&config)?)?;
                if !self.fits(&configuration.platform) {
                    return Ok(None);
                }
                let digest = descriptor.digest.clone();
                Ok(Some(Chosen { digest, layers, environment: configuration.environment() }))
            }
            _ => Err(ImageError::Damaged(format!("{} is not what its type says", descriptor.digest))),
        }
    }

    fn fits(&mut self, platform: &Platform) -> bool {
        let fits = platform.os == "linux" && platform.architecture == self.architecture;
        if !fits && platform.os != "unknown" {
            self.others.insert(format!("{}/{}", platform.os, platform.architecture));
        }
        fits
    }

    fn nothing(&self) -> ImageError {
        let wanted = format!("linux/{}", self.architecture);
        // As many as a person reads.
        let found: Vec<String> = self.others.iter().take(16).map(|other| plain(other)).collect();
        if found.is_empty() {
            return ImageError::NotAnImage("there is no image in it".into());
        }
        ImageError::Platform { wanted, found: found.join(", ") }
    }
}
