//! The indexes in pip's settings, from the same files and variables that `pip install` reads.

mod ini;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::settings::{self, SettingsError, Variables};
use crate::install::interpreters::path_of;
use ringfence_backend::interpreter;
use ringfence_config::GuestWritable;

/// The sources of Python packages. URLs may contain credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PythonIndexes {
    /// Replaces the default index of pip.
    pub(crate) index_url: Option<String>,
    pub(crate) extra_index_urls: Vec<String>,
    /// URLs and paths.
    pub(crate) find_links: Vec<String>,
    pub(crate) trusted_hosts: Vec<String>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) no_index: bool,
}

const KEYS: [&str; 6] = ["index-url", "extra-index-url", "find-links", "trusted-host", "cert", "no-index"];

/// Sections that `pip install` reads; later ones override earlier ones.
const SECTIONS: [&str; 2] = ["global", "install"];

/// Values by section (index in [`SECTIONS`]) and key.
type Settings = BTreeMap<(usize, &'static str), String>;

impl PythonIndexes {
    /// Returns the indexes in the settings of this process and user. Reads files; may block.
    pub(crate) fn of_host(writable: &GuestWritable) -> Result<Self, SettingsError> {
        let prefix = path_of("python3").and_then(|python| interpreter::prefixes(&python).into_iter().next());
        Self::load(&settings::variables_of_process(), prefix.as_deref(), Path::new("/etc"), writable)
    }

    /// Whether the default index of pip is used.
    pub(crate) fn needs_default(&self) -> bool {
        self.index_url.is_none() && !self.no_index
    }

    fn load(
        variables: &Variables,
        prefix: Option<&Path>,
        etc: &Path,
        writable: &GuestWritable,
    ) -> Result<Self, SettingsError> {
        let mut settings = Settings::new();
        for path in files(variables, prefix, etc) {
            settings.extend(settings::read(&path, writable, read_settings)?);
        }
        let variable = |key: &str| {
            let name = format!("PIP_{}", key.replace('-', "_").to_uppercase());
            variables.get(&name).filter(|value| !value.is_empty()).cloned()
        };
        let value = |key: &'static str| {
            let of_files = SECTIONS.iter().enumerate().rev().find_map(|(section, _)| settings.get(&(section, key)));
            variable(key).or_else(|| of_files.cloned())
        };
        let list = |key| -> Vec<String> {
            value(key).iter().flat_map(|value| value.split_whitespace()).map(str::to_owned).collect()
        };
        let of_uv = || ["UV_DEFAULT_INDEX", "UV_INDEX_URL"].iter().find_map(|name| variables.get(*name)).cloned();
        Ok(Self {
            index_url: value("index-url").or_else(of_uv).filter(|url| !url.is_empty()),
            extra_index_urls: list("extra-index-url"),
            find_links: list("find-links"),
            trusted_hosts: list("trusted-host"),
            cert: value("cert").map(PathBuf::from),
            no_index: value("no-index").is_some_and(|value| is_true(&value)),
        })
    }
}

/// Parses a boolean like pip's `strtobool`.
fn is_true(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "y" | "yes" | "t" | "true" | "on" | "1")
}

/// Returns the files that pip reads; later ones override earlier ones.
fn files(variables: &Variables, prefix: Option<&Path>, etc: &Path) -> Vec<PathBuf> {
    const NAME: &str = "pip.conf";
    let variable = |name: &str| variables.get(name).filter(|value| !value.is_empty());
    let named = variable("PIP_CONFIG_FILE").map(PathBuf::from);
    if named.as_deref() == Some(Path::new("/dev/null")) {
        return Vec::new();
    }
    let directories =
        variable("XDG_CONFIG_DIRS").map_or_else(|| vec![etc.join("xdg")], |list| std::env::split_paths(list).collect());
    let mut files: Vec<PathBuf> = directories.iter().map(|directory| directory.join("pip").join(NAME)).collect();
    files.push(etc.join(NAME));
    // pip does not read the user's files if PIP_CONFIG_FILE names an existing file.
    if !named.as_ref().is_some_and(|path| path.exists()) {
        let home = variable("HOME").map(PathBuf::from);
        files.extend(home.iter().map(|home| home.join(".pip").join(NAME)));
        let config = variable("XDG_CONFIG_HOME").map(PathBuf::from).or_else(|| home.map(|home| home.join(".config")));
        files.extend(config.map(|config| config.join("pip").join(NAME)));
    }
    files.extend(prefix.map(|prefix| prefix.join(NAME)));
    files.extend(named);
    files
}

/// Returns the settings of one file that determine the source of packages.
fn read_settings(text: &str) -> Result<Settings, String> {
    let mut settings = Settings::new();
    for (section, key, value) in ini::parse(text)? {
        let key = key.to_lowercase().replace('_', "-");
        let key = key.strip_prefix("--").unwrap_or(&key);
        let section = SECTIONS.iter().position(|known| *known == section);
        if let (Some(section), Some(key), false) = (section, KEYS.iter().find(|known| **known == key), value.is_empty())
        {
            settings.insert((section, key), value);
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests;
