//! The file that names the endpoint while there is one.

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Dropped, it is removed, unless somebody else has named another endpoint in it.
pub(super) struct EndpointFile {
    path: PathBuf,
    line: String,
}

impl EndpointFile {
    /// What one before has left there names an endpoint that is none any more, or another's.
    pub(super) fn clear(path: &Path) -> Result<(), Failure> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Failure::new(format!("the endpoint of before cannot be removed from {}", path.display()))
                    .because(&error))
            }
            _ => Ok(()),
        }
    }

    /// There with all that is in it, or not at all.
    pub(super) fn write(path: &Path, endpoint: &str) -> Result<Self, Failure> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let line = format!("{endpoint}\n");
        let written = tempfile::NamedTempFile::new_in(directory).and_then(|mut file| {
            file.write_all(line.as_bytes())?;
            file.persist(path).map_err(|error| error.error)
        });
        let failed = |error: std::io::Error| {
            Failure::new(format!("the endpoint cannot be written to {}", path.display())).because(&error)
        };
        written.map_err(failed)?;
        Ok(Self { path: path.to_owned(), line })
    }
}

impl Drop for EndpointFile {
    fn drop(&mut self) {
        if std::fs::read(&self.path).is_ok_and(|found| found == self.line.as_bytes()) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
