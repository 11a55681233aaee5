//! The file of `--endpoint-file`, which contains the URL of the endpoint while the endpoint is ready.

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The written file. Dropping this value removes the file, unless another process has changed its content.
pub(super) struct EndpointFile {
    path: PathBuf,
    line: String,
}

impl EndpointFile {
    /// Removes the file that an earlier supervisor has left. The endpoint in it is no longer valid.
    pub(super) fn remove_stale(path: &Path) -> Result<(), Failure> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Failure::new(format!("cannot remove the old endpoint file {}", path.display())).caused_by(&error))
            }
            _ => Ok(()),
        }
    }

    /// Writes the file atomically.
    pub(super) fn write(path: &Path, endpoint: &str) -> Result<Self, Failure> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let line = format!("{endpoint}\n");
        let written = tempfile::NamedTempFile::new_in(directory).and_then(|mut file| {
            file.write_all(line.as_bytes())?;
            file.persist(path).map_err(|error| error.error)
        });
        let failed = |error: std::io::Error| {
            Failure::new(format!("cannot write the endpoint file {}", path.display())).caused_by(&error)
        };
        written.map_err(failed)?;
        Ok(Self { path: path.to_owned(), line })
    }
}

impl Drop for EndpointFile {
    fn drop(&mut self) {
        if std::fs::read(&self.path).is_ok_and(|content| content == self.line.as_bytes()) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
