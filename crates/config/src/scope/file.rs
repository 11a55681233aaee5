//! The file of a scope, which is private: see `private_file`.

use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Stat, statat};
use rustix::io::Errno;
use zeroize::Zeroizing;

use super::ScopeError;
use crate::private_file::{self, PrivateFileError, PrivateFileKind};

/// Scopes are much smaller than this.
const KIND: PrivateFileKind = PrivateFileKind { content: "scope", max_bytes: 64 << 10 };

/// A scope file that was read and can be removed.
#[derive(Debug)]
pub struct ScopeFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl ScopeFile {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, unless another file has its name now.
    pub fn remove(self) -> std::io::Result<()> {
        match statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if identity(&found) == self.identity => std::fs::remove_file(&self.path),
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

pub(super) fn read(path: &Path) -> Result<(Zeroizing<Vec<u8>>, ScopeFile), ScopeError> {
    let (text, found) = private_file::read(path, KIND).map_err(|error| match error {
        PrivateFileError::Unreadable(source) => ScopeError::Unreadable { path: path.to_owned(), source },
        PrivateFileError::Untrusted { problem, hint } => ScopeError::Untrusted { path: path.to_owned(), problem, hint },
    })?;
    Ok((text, ScopeFile { path: path.to_owned(), identity: identity(&found) }))
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}
