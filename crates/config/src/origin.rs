//! Where a value came from.

use std::fmt;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Default,
    File { path: PathBuf, line: usize },
    Variable(String),
    Flag(&'static str),
}

impl Origin {
    /// A path in a file is meant from where that file lies; any other from here.
    pub(super) fn anchor(&self, path: &Path) -> PathBuf {
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
            Self::Variable(name) => write!(formatter, "the variable {name}"),
            Self::Flag(name) => formatter.write_str(name),
        }
    }
}

/// The line, from one, in which a byte of a text lies.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count()
}
