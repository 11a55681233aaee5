//! The environment variables of the process, and the directories that they determine.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The environment variables of the process.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    pub fn from_process() -> Self {
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

    /// Returns a base directory. Relative paths are ignored, as the XDG base directory specification requires.
    fn base_directory(&self, variable: &str, default_in_home: &str) -> Option<PathBuf> {
        let absolute = |name: &str| self.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
        absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(default_in_home)))
    }

    /// The default state directory.
    pub(crate) fn state_directory(&self) -> Option<PathBuf> {
        self.base_directory("XDG_STATE_HOME", ".local/state").map(|base| base.join("ringfence"))
    }

    /// The directory of the record of read-write volumes. It never depends on a configuration file, because the record
    /// decides whether that file is trusted.
    pub(crate) fn record_directory(&self) -> Option<PathBuf> {
        let from_variable = ["RINGFENCE_STATE_DIR", "MCP_BRIDGE_STATE_DIR"].iter().find_map(|name| self.get(name));
        let default = || {
            // ringfence may create its own directory, but not the home directory that contains it.
            let base = self.base_directory("XDG_STATE_HOME", "")?;
            self.state_directory().filter(|_| base.is_dir())
        };
        from_variable.map(PathBuf::from).filter(|path| path.is_absolute()).or_else(default)
    }

    pub(crate) fn config_directory(&self) -> Option<PathBuf> {
        self.base_directory("XDG_CONFIG_HOME", ".config").map(|base| base.join("ringfence"))
    }
}

/// Shows only the names, because values may be secrets.
impl std::fmt::Debug for Environment {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_set().entries(self.0.keys()).finish()
    }
}

/// The directory for files that can be downloaded or built again: `$RINGFENCE_CACHE_DIR`, else `ringfence` in
/// `$XDG_CACHE_HOME`.
pub fn cache_directory() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    variable("RINGFENCE_CACHE_DIR").or_else(|| {
        let base = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")))?;
        Some(base.join("ringfence"))
    })
}
