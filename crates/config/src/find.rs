//! Where the configuration lies.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use ringfence_core::PLACEHOLDER;

use super::error::ConfigError;
use crate::protected_paths::Record;

/// Far more than anybody writes; keeps a wrong path from filling the memory.
const MOST_BYTES: u64 = 1 << 20;

const NAME: &str = "ringfence.toml";

/// The variables of the process.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    pub fn of_process() -> Self {
        let lossy = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        Self(std::env::vars_os().map(|(name, value)| (lossy(name), lossy(value))).collect())
    }

    pub fn new<'a>(variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// A directory of the XDG base directory specification, which wants relative ones ignored.
    fn base(&self, variable: &str, in_home: &str) -> Option<PathBuf> {
        let absolute = |name: &str| self.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
        absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(in_home)))
    }

    pub(crate) fn state_directory(&self) -> Option<PathBuf> {
        self.base("XDG_STATE_HOME", ".local/state").map(|base| base.join("ringfence"))
    }

    /// The directory with the record of read-write volumes; never one that a configuration file names.
    pub(crate) fn record_directory(&self) -> Option<PathBuf> {
        let named = ["RINGFENCE_STATE_DIR", "MCP_BRIDGE_STATE_DIR"].iter().find_map(|name| self.get(name));
        let usual = || {
            // The directory may be created, but not the home that contains it.
            let base = self.base("XDG_STATE_HOME", "")?;
            self.state_directory().filter(|_| base.is_dir())
        };
        named.map(PathBuf::from).filter(|path| path.is_absolute()).or_else(usual)
    }

    pub(crate) fn config_directory(&self) -> Option<PathBuf> {
        self.base("XDG_CONFIG_HOME", ".config").map(|base| base.join("ringfence"))
    }
}

/// The values may be secrets.
impl std::fmt::Debug for Environment {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_set().entries(self.0.keys()).finish()
    }
}

/// The files that may be the configuration, the first that there is.
pub(super) fn candidates(asked: Option<&Path>, environment: &Environment) -> Vec<PathBuf> {
    if let Some(path) = asked {
        return vec![path.to_owned()];
    }
    let own = environment.config_directory().map(|directory| directory.join(NAME));
    [Some(PathBuf::from(NAME)), own].into_iter().flatten().collect()
}

/// Reads the file that was asked for, or the first that there is.
pub(super) fn read_file(
    asked: Option<&Path>,
    environment: &Environment,
) -> Result<Option<(PathBuf, String)>, ConfigError> {
    if let Some(path) = asked {
        return read(path).map(|text| Some((path.to_owned(), text)));
    }
    for path in candidates(None, environment) {
        match read(&path) {
            Err(ConfigError::Unreadable { source, .. })
                if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            // Its name is only held, while a sandbox may write the directory.
            Ok(text) if text == PLACEHOLDER => {}
            found => {
                let text = found?;
                check_implicit(&path, environment)?;
                return Ok(Some((path, text)));
            }
        }
    }
    Ok(None)
}

/// Refuses a configuration in the working directory that a guest may have put there.
fn check_implicit(path: &Path, environment: &Environment) -> Result<(), ConfigError> {
    // Guests never see the contents of the user's settings directory.
    let record = environment.record_directory().filter(|_| path == Path::new(NAME));
    match record.and_then(|directory| Record::in_directory(&directory).written_by_guest(path)) {
        Some(volume) => Err(ConfigError::GuestWritten { path: path.to_owned(), volume }),
        None => Ok(()),
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { path: path.to_owned(), source };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(unreadable(std::io::Error::new(ErrorKind::FileTooLarge, "it is larger than 1 MiB")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_only_held_is_no_configuration() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("ringfence").join(NAME);
        std::fs::create_dir(directory.path().join("ringfence")).unwrap();
        let base = directory.path().to_str().unwrap().to_owned();
        let environment = Environment::new([("XDG_CONFIG_HOME", &*base)]);
        std::fs::write(&own, PLACEHOLDER).unwrap();
        assert!(read_file(None, &environment).unwrap().is_none());
        std::fs::write(&own, "# a person's own\n").unwrap();
        assert_eq!(read_file(None, &environment).unwrap().map(|(path, _)| path), Some(own));
    }
}
