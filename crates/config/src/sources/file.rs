//! Finds and reads the configuration file.
//!
//! Without an explicit path, these are tried in order: `ringfence.toml` in the working directory, then the one in the
//! user's configuration directory. A file in the working directory that a guest may have written is refused.

use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use ringfence_core::PLACEHOLDER;

use super::Environment;
use crate::error::ConfigError;
use crate::guest_writable::VolumeRecord;

/// Maximum size of a configuration file, so that a wrong path cannot fill the memory.
const MAX_BYTES: u64 = 1 << 20;

const FILE_NAME: &str = "ringfence.toml";

/// Returns the paths where the configuration file may be. The first that exists is used.
pub(super) fn candidates(explicit: Option<&Path>, environment: &Environment) -> Vec<PathBuf> {
    if let Some(path) = explicit {
        return vec![path.to_owned()];
    }
    let in_config_directory = environment.config_directory().map(|directory| directory.join(FILE_NAME));
    [Some(PathBuf::from(FILE_NAME)), in_config_directory].into_iter().flatten().collect()
}

/// Returns the path and the text of the configuration file, if there is one. A file with an explicit path must exist.
pub(super) fn read_configuration(
    explicit: Option<&Path>,
    environment: &Environment,
) -> Result<Option<(PathBuf, String)>, ConfigError> {
    if let Some(path) = explicit {
        return read(path).map(|text| Some((path.to_owned(), text)));
    }
    for path in candidates(None, environment) {
        match read(&path) {
            Err(ConfigError::Unreadable { source, .. })
                if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            // A sandbox with strict volumes reserves the name with a placeholder.
            Ok(text) if text == PLACEHOLDER => {}
            result => {
                let text = result?;
                check_not_written_by_guest(&path, environment)?;
                return Ok(Some((path, text)));
            }
        }
    }
    Ok(None)
}

/// Refuses a file in the working directory that a guest may have created there.
fn check_not_written_by_guest(path: &Path, environment: &Environment) -> Result<(), ConfigError> {
    // The user's configuration directory is never visible to guests.
    let record = environment.record_directory().filter(|_| path == Path::new(FILE_NAME));
    match record.and_then(|directory| VolumeRecord::in_directory(&directory).written_by_guest(path)) {
        Some(volume) => Err(ConfigError::GuestWritten { path: path.to_owned(), volume }),
        None => Ok(()),
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { path: path.to_owned(), source };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(unreadable(std::io::Error::new(ErrorKind::FileTooLarge, "the file is larger than 1 MiB")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholder_is_not_a_configuration() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ringfence").join(FILE_NAME);
        std::fs::create_dir(directory.path().join("ringfence")).unwrap();
        let base = directory.path().to_str().unwrap().to_owned();
        let environment = Environment::new([("XDG_CONFIG_HOME", &*base)]);
        std::fs::write(&file, PLACEHOLDER).unwrap();
        assert!(read_configuration(None, &environment).unwrap().is_none());
        std::fs::write(&file, "# written by the user\n").unwrap();
        assert_eq!(read_configuration(None, &environment).unwrap().map(|(path, _)| path), Some(file));
    }
}
