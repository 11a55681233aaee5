//! Entry points of the fuzz target `client_configs`.

use std::path::Path;

use crate::sources::parse_file;

/// Asserts that the values of a file that parses form a valid configuration again.
pub fn config_file(text: &str) {
    let Ok(values) = parse_file(text, Path::new("ringfence.toml")) else { return };
    values.config().expect("a configuration");
    for (key, _) in values.iter() {
        assert!(!key.is_empty());
    }
}
