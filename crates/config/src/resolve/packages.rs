//! Converts `[packages]`.

use crate::configuration::PackageSettings;
use crate::document::PackagesConfig;
use crate::error::ConfigError;
use crate::values::Values;

/// A smaller cache would hold less than one large package.
const MIN_BYTES: u64 = 64 << 20;

pub(super) fn resolve(config: &PackagesConfig, values: &Values) -> Result<PackageSettings, ConfigError> {
    let default = PackageSettings::default();
    let max_bytes = config.max_size.map_or(default.max_bytes, |size| size.0);
    if max_bytes < MIN_BYTES {
        return Err(ConfigError::Invalid {
            origin: values.origin(&["packages", "max_size"]),
            problem: "packages.max_size is less than 64M".into(),
            hint: Some("set a larger size, or `packages.enabled = false`".into()),
        });
    }
    Ok(PackageSettings {
        is_enabled: config.enabled.unwrap_or(default.is_enabled),
        python_index: registry("python", config.registries.python.as_deref(), values)?,
        npm_registry: registry("npm", config.registries.npm.as_deref(), values)?,
        max_bytes,
    })
}

/// Checks the URL of a registry. The message does not contain it, because it may contain a password.
fn registry(name: &str, url: Option<&str>, values: &Values) -> Result<Option<String>, ConfigError> {
    let Some(url) = url.filter(|url| !url.is_empty()) else { return Ok(None) };
    let invalid = |problem: &str, hint: &str| ConfigError::Invalid {
        origin: values.origin(&["packages", "registries", name]),
        problem: format!("packages.registries.{name} {problem}"),
        hint: Some(hint.into()),
    };
    let rest = ["https://", "http://"].iter().find_map(|scheme| url.strip_prefix(scheme));
    let authority = rest.and_then(|rest| rest.split(['/', '?', '#']).next()).filter(|host| !host.is_empty());
    let Some(authority) = authority else {
        return Err(invalid("is not a URL", "write a URL like https://registry.example/simple"));
    };
    if authority.contains('@') {
        return Err(invalid(
            "contains a user or password, which the mirror does not use",
            "remove it: every sandbox could install what only this login may read",
        ));
    }
    if url.contains(|c: char| c.is_whitespace() || c.is_control() || matches!(c, '?' | '#')) {
        return Err(invalid("has a query, a fragment or white space", "write only scheme, host and path"));
    }
    Ok(Some(url.to_owned()))
}
