//! The file that names the endpoint while there is one.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Dropped, it is removed.
pub(super) struct EndpointFile(PathBuf);

impl EndpointFile {
    /// There with all that is in it, or not at all.
    pub(super) fn write(path: &Path, endpoint: &str) -> Result<Self, Failure> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let written = tempfile::NamedTempFile::new_in(directory).and_then(|mut file| {
            writeln!(file, "{endpoint}")?;
            file.persist(path).map_err(|error| error.error)
        });
        let failed = |error: std::io::Error| {
            Failure::new(format!("the endpoint cannot be written to {}", path.display())).because(&error)
        };
        written.map_err(failed)?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for EndpointFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
