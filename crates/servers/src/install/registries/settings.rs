//! Reads settings files of package managers. Their size is limited, and files that guests could have written are refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::text_file::{self, Links};
use ringfence_config::{GuestWritable, GuestWritten};

/// Environment variables by name.
pub(super) type Variables = BTreeMap<String, String>;

/// The reason why the settings of package registries cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error("settings of the package registries are refused: {0}")]
    GuestWritten(GuestWritten),
    #[error("the settings of the package registries in {} cannot be used: {problem}", path.display())]
    Unusable { path: PathBuf, problem: String },
}

impl SettingsError {
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Self::GuestWritten(_) => {
                "check the file for changes that guests made; then set the registry where no guest can write (in \
                 /etc/pip.conf, or as PIP_INDEX_URL or npm_config_registry in the environment of ringfence) and remove it \
                 from this file, or mount the volume read-only"
            }
            Self::Unusable { .. } => "correct the file, or remove it",
        }
    }
}

pub(super) fn variables_of_process() -> Variables {
    let text = |text: std::ffi::OsString| text.into_string().ok();
    std::env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value)?))).collect()
}

/// Reads a file and extracts the relevant settings with `extract`. It checks afterwards whether guests may write the file:
/// a guest that gets access later cannot have changed the text that was read.
pub(super) fn read<T: Default + PartialEq>(
    path: &Path,
    writable: &GuestWritable,
    extract: impl Fn(&str) -> Result<T, String>,
) -> Result<T, SettingsError> {
    let unusable = |problem| SettingsError::Unusable { path: path.to_owned(), problem };
    let Some(text) = text_file::read(path, Links::Follow).map_err(unusable)? else { return Ok(T::default()) };
    let extracted = extract(&text).map_err(unusable)?;
    if extracted != T::default() {
        writable.check(path).map_err(SettingsError::GuestWritten)?;
    }
    Ok(extracted)
}
