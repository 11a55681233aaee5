//! Keeps an installation from filling the host's disk.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::phase::{Phase, StartFailure};

const MOST_BYTES: u64 = 4 << 30;
const MOST_FILES: u64 = 400_000;
const BETWEEN_LOOKS: Duration = Duration::from_secs(2);

/// Ends when a directory has grown beyond what one installation may have.
pub(super) async fn outgrows(directory: &Path) -> StartFailure {
    loop {
        tokio::time::sleep(BETWEEN_LOOKS).await;
        let path = directory.to_owned();
        if tokio::task::spawn_blocking(move || is_over(&path, MOST_BYTES, MOST_FILES)).await.unwrap_or(false) {
            let message = "an installation wrote more than 4 GiB or 400000 files, and was ended";
            return StartFailure::lasting(Phase::DepInstall, message);
        }
    }
}

/// Never counts further than it must.
fn is_over(directory: &Path, most_bytes: u64, most_files: u64) -> bool {
    let (mut bytes, mut files) = (0, 0);
    let mut waiting: Vec<PathBuf> = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            // Of the entry itself: what a link leads to is not followed.
            let Ok(found) = entry.metadata() else { continue };
            bytes += found.len();
            files += 1;
            if bytes > most_bytes || files > most_files {
                return true;
            }
            if found.is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_files_count() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("d")).unwrap();
        std::fs::write(directory.path().join("d/x"), vec![0; 100_000]).unwrap();
        assert!(is_over(directory.path(), 99_999, 10));
        assert!(is_over(directory.path(), 1 << 30, 1));
        assert!(!is_over(directory.path(), 1 << 30, 2));
    }
}
