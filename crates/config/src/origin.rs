//! The origins of values.

use std::fmt;
use std::path::{Path, PathBuf};

/// The source that set a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Default,
    File { path: PathBuf, line: usize },
    Variable(String),
    Flag(&'static str),
}

impl Origin {
    /// Resolves a relative path: one in a file is relative to the directory of that file, any other to the working
    /// directory.
    pub(crate) fn resolve_path(&self, path: &Path) -> PathBuf {
        match self {
            Self::File { path: file, .. } => file.parent().map_or_else(|| path.to_owned(), |parent| parent.join(path)),
            _ => path.to_owned(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => formatter.write_str("default"),
            Self::File { path, line } => write!(formatter, "{}:{line}", path.display()),
            Self::Variable(name) => write!(formatter, "environment variable {name}"),
            Self::Flag(name) => formatter.write_str(name),
        }
    }
}

/// Returns the line, counted from one, of a byte of the text.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count()
}
