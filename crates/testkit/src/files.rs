//! Programs and projects that tests host.

use std::path::PathBuf;

/// Something in `fixtures`.
pub fn fixture_file(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "fixtures", name].iter().collect()
}
