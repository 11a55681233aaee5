//! Where this user's files lie.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Os {
    Linux,
    Macos,
}

/// All that decides where clients keep their servers.
#[derive(Debug, Clone)]
pub struct Places {
    pub home: PathBuf,
    pub cwd: PathBuf,
    /// `$XDG_CONFIG_HOME`, else `~/.config`.
    pub config_dir: PathBuf,
    pub os: Os,
    pub env: BTreeMap<String, String>,
}

impl Places {
    /// Those of this process; nothing if it has no home.
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

    /// Where applications with windows keep their settings.
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

/// From where a path is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    Home,
    Config,
    Applications,
    /// The project that one is in. Not trusted: whoever wrote it may be a stranger.
    Project,
    /// The directory that a variable names, else one in the home.
    Directory(&'static str, &'static str),
    /// The file that a variable names, if it is set.
    File(&'static str),
}

impl Base {
    /// The files that a pattern stands for. In it, `*` is any name or part of one; without one the file need not exist.
    pub(super) fn files(self, pattern: &str, places: &Places) -> Vec<PathBuf> {
        let start = match self {
            Self::Home => places.home.clone(),
            Self::Config => places.config_dir.clone(),
            Self::Applications => places.applications(),
            Self::Project => places.cwd.clone(),
            Self::Directory(variable, otherwise) => match places.variable(variable) {
                Some(directory) => places.cwd.join(directory),
                None => places.home.join(otherwise),
            },
            Self::File(variable) => {
                return places.variable(variable).map(|path| places.cwd.join(path)).into_iter().collect();
            }
        };
        let mut found = vec![start];
        for part in pattern.split('/') {
            found = match part.split_once('*') {
                None => found.into_iter().map(|path| path.join(part)).collect(),
                Some((begin, end)) => found.iter().flat_map(|path| named(path, begin, end)).collect(),
            };
        }
        found
    }
}

/// What a directory has of names that begin and end so, in order.
fn named(directory: &Path, begin: &str, end: &str) -> Vec<PathBuf> {
    /// More than anybody has.
    const MOST: usize = 1000;
    let names = std::fs::read_dir(directory).into_iter().flatten().flatten().take(MOST).map(|entry| entry.file_name());
    let fits = |name: &str| {
        name.len() >= begin.len() + end.len()
            && name.starts_with(begin)
            && name.ends_with(end)
            && !name.starts_with('.')
    };
    let mut names: Vec<String> = names.filter_map(|name| name.into_string().ok()).filter(|name| fits(name)).collect();
    names.sort();
    names.into_iter().map(|name| directory.join(name)).collect()
}
