//! The configuration file, for the fuzz target `client_configs`.

use std::path::Path;

use super::document;

/// Asserts that a file that parses can be printed, and that the printed text is a valid configuration.
pub fn own_file(text: &str) {
    let Ok(values) = document::read(text, Path::new("ringfence.toml")) else { return };
    values.config().expect("a configuration");
    for (key, _) in values.iter() {
        assert!(!key.is_empty());
    }
}
