//! The directory for files that can be fetched again.

use std::path::PathBuf;

/// The directory for what can be fetched again: `$RINGFENCE_CACHE_DIR`, else `ringfence` in `$XDG_CACHE_HOME`.
pub fn cache_directory() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    variable("RINGFENCE_CACHE_DIR").or_else(|| {
        let base = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")))?;
        Some(base.join("ringfence"))
    })
}
