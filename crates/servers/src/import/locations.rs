//! The directories of the user, and the patterns of the clients' files in them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Os {
    Linux,
    Macos,
}

/// The directories and environment variables that determine where clients store their settings.
#[derive(Debug, Clone)]
pub struct UserDirectories {
    pub home: PathBuf,
    pub cwd: PathBuf,
    /// `$XDG_CONFIG_HOME`, else `~/.config`.
    pub config_dir: PathBuf,
    pub os: Os,
    pub env: BTreeMap<String, String>,
}

impl UserDirectories {
    /// Returns the directories of this process, or `None` if it has no home directory.
    pub fn of_process() -> Option<Self> {
        let lossy = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        let env: BTreeMap<String, String> =
            std::env::vars_os().map(|(name, value)| (lossy(name), lossy(value))).collect();
        let absolute = |name: &str| env.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = absolute("HOME")?;
        let config_dir = absolute("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config"));
        let os = if cfg!(target_os = "macos") { Os::Macos } else { Os::Linux };
        Some(Self { cwd: std::env::current_dir().ok()?, home, config_dir, os, env })
    }

    /// Returns the directory in which desktop applications store their settings.
    fn applications(&self) -> PathBuf {
        match self.os {
            Os::Linux => self.config_dir.clone(),
            Os::Macos => self.home.join("Library/Application Support"),
        }
    }

    fn variable(&self, name: &str) -> Option<&Path> {
        self.env.get(name).filter(|text| !text.is_empty()).map(Path::new)
    }
}

/// The directory that a pattern is relative to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    Home,
    Config,
    Applications,
    /// The working directory. Its files are not trusted, because another user may have written them.
    Project,
    /// The directory in an environment variable, else one in the home directory.
    Directory(&'static str, &'static str),
    /// The file in an environment variable, if it is set.
    File(&'static str),
}

impl Base {
    /// Returns the files of a pattern, in which `*` matches any part of a name. Without `*` the file need not exist.
    pub(super) fn files(self, pattern: &str, directories: &UserDirectories) -> Vec<PathBuf> {
        let start = match self {
            Self::Home => directories.home.clone(),
            Self::Config => directories.config_dir.clone(),
            Self::Applications => directories.applications(),
            Self::Project => directories.cwd.clone(),
            Self::Directory(variable, default) => match directories.variable(variable) {
                Some(directory) => directories.cwd.join(directory),
                None => directories.home.join(default),
            },
            Self::File(variable) => {
                return directories.variable(variable).map(|path| directories.cwd.join(path)).into_iter().collect();
            }
        };
        let mut found = vec![start];
        for part in pattern.split('/') {
            found = match part.split_once('*') {
                None => found.into_iter().map(|path| path.join(part)).collect(),
                Some((prefix, suffix)) => found.iter().flat_map(|path| matching_files(path, prefix, suffix)).collect(),
            };
        }
        found
    }
}

/// Returns the files of a directory whose names have this prefix and suffix, in order.
fn matching_files(directory: &Path, prefix: &str, suffix: &str) -> Vec<PathBuf> {
    const MAX_FILES: usize = 1000;
    let names =
        std::fs::read_dir(directory).into_iter().flatten().flatten().take(MAX_FILES).map(|entry| entry.file_name());
    let matches = |name: &str| {
        name.len() >= prefix.len() + suffix.len()
            && name.starts_with(prefix)
            && name.ends_with(suffix)
            && !name.starts_with('.')
    };
    let mut names: Vec<String> =
        names.filter_map(|name| name.into_string().ok()).filter(|name| matches(name)).collect();
    names.sort();
    names.into_iter().map(|name| directory.join(name)).collect()
}
