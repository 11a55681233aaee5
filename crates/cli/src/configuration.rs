//! Loads the configuration of this process.

use std::path::PathBuf;

use ringfence_config::{Configuration, Environment, Flag, Sources};

use crate::failure::Failure;

/// Loads the configuration with these flags. `file` is the value of `--config`.
pub(crate) fn load(file: Option<PathBuf>, flags: Vec<Flag>) -> Result<Configuration, Failure> {
    ringfence_config::load(&sources(file, flags)).map_err(Failure::from)
}

/// Returns the sources of the configuration: the file, the environment and the flags.
pub(crate) fn sources(file: Option<PathBuf>, flags: Vec<Flag>) -> Sources {
    let environment = Environment::from_process();
    let from_environment = environment.get(ringfence_config::CONFIG_FILE_VARIABLE).filter(|path| !path.is_empty());
    Sources { file: file.or_else(|| from_environment.map(PathBuf::from)), environment, flags }
}
