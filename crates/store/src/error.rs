//! What can go wrong with the store.

use std::path::PathBuf;

use super::NotKept;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the state directory {} cannot be used", path.display())]
    Directory { path: PathBuf, source: std::io::Error },
    #[error("the database {} cannot be used", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("the state directory {} belongs to another user", path.display())]
    NotOurs { path: PathBuf },
    #[error("others may write the state directory {} (mode {mode:o})", path.display())]
    WritableByOthers { path: PathBuf, mode: u32 },
    #[error("the state database {} is of a newer ringfence: its format is {found}, this version knows formats up to {known}", path.display())]
    Newer { path: PathBuf, found: i64, known: usize },
    #[error("the database {} is broken ({why}), and another server uses it", path.display())]
    BrokenInUse { path: PathBuf, why: String },
    #[error("the database {} is broken ({why}), and what can be read of it could not be saved", path.display())]
    NotSaved { path: PathBuf, why: String, source: Box<StoreError> },
    #[error("the database failed")]
    Database(#[from] rusqlite::Error),
    /// One that failed for all that were written together.
    #[error("nothing was written: {0}")]
    Write(String),
    #[error("there is a server `{name}` already")]
    NameTaken { name: String },
    #[error(transparent)]
    NotKept(#[from] NotKept),
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Directory { .. } | Self::NotOurs { .. } => {
                "choose another with RINGFENCE_STATE_DIR or sessions.state_dir".into()
            }
            Self::File { path, .. } => {
                format!("make {} a file that this user may read and write, or move it away", path.display())
            }
            Self::WritableByOthers { path, .. } => format!("chmod 700 {}", path.display()),
            Self::Newer { .. } => "the file is left unchanged; use the newer version of ringfence, or choose another directory with RINGFENCE_STATE_DIR"
                .into(),
            Self::BrokenInUse { .. } => {
                "stop the other servers of this state directory, and start again: what can be read is saved then".into()
            }
            Self::NotSaved { .. } => {
                "it is left as it is: make room for three times its size beside it, and start again".into()
            }
            Self::Database(_) | Self::Write(_) => "check that the disk is not full and the directory writable".into(),
            Self::NameTaken { .. } => "choose another name, or say that it is to be replaced".into(),
            Self::NotKept(reason) => reason.hint(),
            Self::Closed => return Vec::new(),
        };
        vec![hint]
    }
}
