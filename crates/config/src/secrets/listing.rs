//! The list of all secrets, without their values.

use std::collections::BTreeMap;

use super::{SecretSource, ValueLocation};
use crate::origin::Origin;
use crate::secret_store::{SecretSettings, StoredSecret};

/// A secret without its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedSecret {
    pub name: String,
    pub settings: SecretSettings,
    pub origin: SecretOrigin,
}

/// The source of a secret, where it can be changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretOrigin {
    /// It was added with `ringfence secret`.
    Store {
        /// The table in the configuration that it replaces, if there is one.
        replaces: Option<Origin>,
    },
    Configuration {
        origin: Origin,
        /// The key that locates the value: `env`, `file` or `command`.
        key: &'static str,
    },
}

pub(crate) fn list(stored: BTreeMap<String, StoredSecret>, configured: &[SecretSource]) -> Vec<ListedSecret> {
    let of_configuration = configured.iter().filter(|source| !stored.contains_key(&source.name)).map(|source| {
        let key = match &source.location {
            ValueLocation::Variable(_) => "env",
            ValueLocation::File(_) => "file",
            ValueLocation::Command(_) => "command",
        };
        let origin = SecretOrigin::Configuration { origin: source.origin.clone(), key };
        ListedSecret { name: source.name.clone(), settings: source.usage.settings(), origin }
    });
    let mut listed: Vec<ListedSecret> = of_configuration.collect();
    listed.extend(stored.into_iter().map(|(name, secret)| {
        let replaced = configured.iter().find(|source| source.name == name);
        let origin = SecretOrigin::Store { replaces: replaced.map(|source| source.origin.clone()) };
        ListedSecret { name, settings: secret.settings, origin }
    }));
    listed.sort_by(|a, b| a.name.cmp(&b.name));
    listed
}
