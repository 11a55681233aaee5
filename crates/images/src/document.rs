//! The documents of an image, as far as they are looked at. Docker's own have the same shape as those of OCI.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::digest::Digest;
use super::error::{ImageError, plain};

/// Names a part, and says what it is.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    pub(super) media_type: String,
    pub(super) digest: Digest,
    pub(super) size: u64,
    pub(super) platform: Option<Platform>,
    #[serde(default)]
    pub(super) annotations: Option<BTreeMap<String, String>>,
}

/// What a program runs on.
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

/// How programs of an image are run.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Configuration {
    #[serde(flatten)]
    pub(super) platform: Platform,
    config: Option<Process>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Process {
    #[serde(rename = "Env")]
    environment: Option<Vec<String>>,
}

impl Document {
    /// What it is, is told by what is in it. One that could be both would be another for other programs.
    pub(super) fn parse(content: &[u8]) -> Result<Self, ImageError> {
        #[derive(Deserialize)]
        struct Either {
            manifests: Option<Vec<Descriptor>>,
            config: Option<Descriptor>,
            layers: Option<Vec<Descriptor>>,
        }
        match json(content)? {
            Either { manifests: Some(manifests), config: None, layers: None } => Ok(Self::Index(manifests)),
            Either { manifests: None, config: Some(config), layers: Some(layers) } => {
                Ok(Self::Manifest { config, layers })
            }
            _ => Err(ImageError::NotAnImage("a document of it is neither an index nor a manifest".into())),
        }
    }
}

impl Configuration {
    pub(super) fn parse(content: &[u8]) -> Result<Self, ImageError> {
        json(content)
    }

    /// `NAME=VALUE` each.
    pub(super) fn environment(self) -> Vec<String> {
        self.config.and_then(|config| config.environment).unwrap_or_default()
    }
}

fn json<'a, T: Deserialize<'a>>(content: &'a [u8]) -> Result<T, ImageError> {
    serde_json::from_slice(content).map_err(|error| ImageError::NotAnImage(plain(&error.to_string())))
}
