//! Limits the disk space of an installation.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::phase::{Phase, StartFailure};

const MAX_BYTES: u64 = 4 << 30;
const MAX_FILES: u64 = 400_000;
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Waits until a directory exceeds the limits of an installation.
pub(super) async fn wait_until_exceeded(directory: &Path) -> StartFailure {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let path = directory.to_owned();
        if tokio::task::spawn_blocking(move || exceeds(&path, MAX_BYTES, MAX_FILES)).await.unwrap_or(false) {
            let message = "the installation was stopped because it wrote more than 4 GiB or 400000 files";
            return StartFailure::permanent(Phase::DepInstall, message);
        }
    }
}

/// Whether a directory exceeds one of the limits. Stops counting as soon as it does.
fn exceeds(directory: &Path, max_bytes: u64, max_files: u64) -> bool {
    let (mut bytes, mut files) = (0, 0);
    let mut pending: Vec<PathBuf> = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            // `DirEntry::metadata` does not follow links.
            let Ok(found) = entry.metadata() else { continue };
            bytes += found.len();
            files += 1;
            if bytes > max_bytes || files > max_files {
                return true;
            }
            if found.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_files_are_limited() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("d")).unwrap();
        std::fs::write(directory.path().join("d/x"), vec![0; 100_000]).unwrap();
        assert!(exceeds(directory.path(), 99_999, 10));
        assert!(exceeds(directory.path(), 1 << 30, 1));
        assert!(!exceeds(directory.path(), 1 << 30, 2));
    }
}
