//! The JSON documents of an image, as far as they are used. Docker's documents have the same structure as those of OCI.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::digest::Digest;
use crate::error::{ImageError, printable};

/// A reference to a blob, with its type and size.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    pub(super) platform: Option<Platform>,
    #[serde(default)]
    pub(super) annotations: Option<BTreeMap<String, String>>,
}

/// An operating system and architecture.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Platform {
    pub(super) os: String,
    pub(super) architecture: String,
    pub(super) variant: Option<String>,
}

#[derive(Debug)]
pub(super) enum Document {
    Index(Vec<Descriptor>),
    Manifest { config: Descriptor, layers: Vec<Descriptor> },
}

/// The configuration of an image: its platform and how its programs are run.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ImageConfig {
    #[serde(flatten)]
    pub(super) platform: Platform,
    config: Option<ProcessConfig>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ProcessConfig {
    #[serde(rename = "Env")]
    environment: Option<Vec<String>>,
}

impl Document {
    /// Parses an index or a manifest, which differ by their fields. A document with the fields of both is refused, because
    /// other programs could read it as the other kind.
    pub(super) fn parse(content: &[u8]) -> Result<Self, ImageError> {
        #[derive(Deserialize)]
        struct Either {
            manifests: Option<Vec<Descriptor>>,
            config: Option<Descriptor>,
            layers: Option<Vec<Descriptor>>,
        }
        match parse_json(content)? {
            Either { manifests: Some(manifests), config: None, layers: None } => Ok(Self::Index(manifests)),
            Either { manifests: None, config: Some(config), layers: Some(layers) } => {
                Ok(Self::Manifest { config, layers })
            }
            _ => Err(ImageError::NotAnImage("a document is neither an index nor a manifest".into())),
        }
    }
}

impl ImageConfig {
    pub(super) fn parse(content: &[u8]) -> Result<Self, ImageError> {
        parse_json(content)
    }

    /// Returns the environment variables as `NAME=VALUE`.
    pub(super) fn environment(self) -> Vec<String> {
        self.config.and_then(|config| config.environment).unwrap_or_default()
    }
}

fn parse_json<'a, T: Deserialize<'a>>(content: &'a [u8]) -> Result<T, ImageError> {
    serde_json::from_slice(content).map_err(|error| ImageError::NotAnImage(printable(&error.to_string())))
}
