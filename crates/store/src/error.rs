//! Errors of the store.

use std::fmt;
use std::path::PathBuf;

use ringfence_core::bytes;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the state directory {} cannot be used", path.display())]
    Directory { path: PathBuf, source: std::io::Error },
    #[error("the state database {} cannot be used", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("the state directory {} belongs to another user", path.display())]
    OwnedByOther { path: PathBuf },
    #[error("the state directory {} is writable by other users (mode {mode:o})", path.display())]
    WritableByOthers { path: PathBuf, mode: u32 },
    #[error("the state database {} was written by a newer ringfence: its format is {found}, this version supports formats up to {known}", path.display())]
    Newer { path: PathBuf, found: i64, known: usize },
    #[error("the state database {} is damaged ({reason}) and is in use", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("the state database {} is damaged ({reason}), and no replacement could be created", path.display())]
    NotRestored { path: PathBuf, reason: String, source: Box<StoreError> },
    #[error("the state database returned an error")]
    Database(#[from] rusqlite::Error),
    /// The transaction failed in which this write was committed together with others.
    #[error("the state database cannot be written: {0}")]
    Write(String),
    #[error("a server named `{name}` already exists")]
    NameTaken { name: String },
    #[error(transparent)]
    Rejected(#[from] Rejected),
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Directory { .. } | Self::OwnedByOther { .. } => {
                "choose another directory with RINGFENCE_STATE_DIR or sessions.state_dir".into()
            }
            Self::File { path, .. } => {
                format!("make {} a file that this user may read and write, or move it elsewhere", path.display())
            }
            Self::WritableByOthers { path, .. } => format!("chmod 700 {}", path.display()),
            Self::Newer { .. } => {
                "the file is left unchanged; use the newer version of ringfence, or choose another directory with RINGFENCE_STATE_DIR"
                    .into()
            }
            Self::Damaged { .. } => {
                "stop all servers of this state directory and start again; the newest backup is then restored".into()
            }
            Self::NotRestored { .. } => {
                "the damaged database is left unchanged; free disk space in its directory and start again".into()
            }
            Self::Database(_) | Self::Write(_) => {
                "check that the disk is not full and that the state directory is writable".into()
            }
            Self::NameTaken { .. } => "choose another name, or replace the existing server".into(),
            Self::Rejected(reason) => reason.hint(),
            Self::Closed => return Vec::new(),
        };
        vec![hint]
    }
}

/// The reason why a saved tool or a memory was not stored. Shown to the code that tried to save it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    #[error("`{name}` is not a valid name of a saved tool: {reason}")]
    ToolName { name: String, reason: &'static str },
    #[error("invalid key of a memory: {reason}")]
    MemoryKey { reason: &'static str },
    #[error("the value of a memory must be JSON")]
    NotJson,
    #[error("{what} has {bytes} bytes; the limit is {}", bytes::format(*max))]
    TooLarge { what: &'static str, bytes: u64, max: u64 },
    #[error("there are already {max} {collection}, which is the limit")]
    TooMany { collection: Collection, max: u64 },
    #[error("your {collection} would have {bytes} bytes in total; the limit is {}", bytes::format(*max))]
    QuotaExceeded { collection: Collection, bytes: u64, max: u64 },
}

/// The values of one principal that share a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collection {
    Memories,
    SavedTools,
}

impl fmt::Display for Collection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Memories => "memories",
            Self::SavedTools => "saved tools",
        })
    }
}

impl Rejected {
    /// Returns true if a limit was exceeded, false if the value itself is invalid.
    pub fn is_limit(&self) -> bool {
        matches!(self, Self::TooLarge { .. } | Self::TooMany { .. } | Self::QuotaExceeded { .. })
    }

    pub fn hint(&self) -> String {
        match self {
            Self::ToolName { .. } => "choose a name of ASCII letters, digits and _, such as `count_words`".into(),
            Self::MemoryKey { .. } => "choose a key of 1 to 256 printable characters".into(),
            Self::NotJson => {
                "save a value that JSON can represent: text, numbers, lists, dictionaries with text as keys".into()
            }
            Self::TooLarge { .. } => "save less data, or split it into several values".into(),
            Self::QuotaExceeded { collection: Collection::SavedTools, .. } => {
                "delete saved tools that are no longer needed; the last 20 versions of each count".into()
            }
            Self::TooMany { collection, .. } | Self::QuotaExceeded { collection, .. } => {
                format!("delete {collection} that are no longer needed")
            }
        }
    }
}
