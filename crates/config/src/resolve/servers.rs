//! Converts `[servers.NAME]`.

use std::collections::BTreeMap;
use std::path::Path;

use ringfence_entries::{EntryError, entry_from_json, resolve_relative_paths};

use crate::configuration::ConfiguredServer;
use crate::document::ServerEntryConfig;
use crate::error::ConfigError;
use crate::values::Values;

pub(super) fn resolve(
    servers: &BTreeMap<String, ServerEntryConfig>,
    values: &Values,
) -> Result<Vec<ConfiguredServer>, ConfigError> {
    servers.iter().map(|(name, config)| server(name, config, values)).collect()
}

fn server(name: &str, config: &ServerEntryConfig, values: &Values) -> Result<ConfiguredServer, ConfigError> {
    let invalid = |key: Option<&str>, problem: String, hint: Option<String>| {
        let mut path = vec!["servers", name];
        path.extend(key.into_iter().flat_map(|key| key.split('.')));
        ConfigError::Invalid { origin: values.origin(&path), problem: format!("servers.{name}: {problem}"), hint }
    };
    let mut value = serde_json::to_value(config)
        .map_err(|error| invalid(None, format!("cannot convert the entry to JSON: {error}"), None))?;
    let directory = values.origin(&["servers", name]).resolve_path(Path::new("."));
    resolve_relative_paths(&mut value, &directory);
    let (entry, warnings) = entry_from_json(name, &value).map_err(|error| {
        let key = match &error {
            EntryError::WrongType { key, .. } | EntryError::InvalidValue { key, .. } => Some(key.as_str()),
            _ => None,
        };
        invalid(key, error.to_string(), error.hints().into_iter().next())
    })?;
    Ok(ConfiguredServer { entry, warnings })
}
