//! The registries in npm's settings, from the same files and variables that npm reads.
//!
//! The `.npmrc` of a project is not read: the author of a project must not choose the registry.

mod ini;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::settings::{self, SettingsError, Variables};
use crate::install::interpreters::path_of;
use crate::text_file::{self, Links};
use ringfence_config::GuestWritable;

/// The sources of npm packages. URLs may contain credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NpmRegistries {
    /// Replaces the default registry of npm.
    pub(crate) registry: Option<String>,
    /// Registries of single scopes (`@scope`).
    pub(crate) scopes: BTreeMap<String, String>,
    pub(crate) cafile: Option<PathBuf>,
}

type Settings = BTreeMap<String, String>;

/// The directories of npm and node.
#[derive(Debug, Default)]
struct Installation {
    /// The directory of the npm package, which may contain an `npmrc`.
    package: Option<PathBuf>,
    /// The prefix of node, unless a setting names another.
    prefix: Option<PathBuf>,
}

impl Installation {
    fn of_host() -> Self {
        let real = |name| path_of(name).and_then(|path| std::fs::canonicalize(path).ok());
        let above = |path: PathBuf| Some(path.parent()?.parent()?.to_owned());
        Self { package: real("npm").and_then(above), prefix: real("node").and_then(above) }
    }
}

impl NpmRegistries {
    /// Returns the registries in the settings of this process and user. Reads files; may block.
    pub(crate) fn of_host(writable: &GuestWritable) -> Result<Self, SettingsError> {
        Self::load(&settings::variables_of_process(), &Installation::of_host(), writable)
    }

    fn load(
        variables: &Variables,
        installation: &Installation,
        writable: &GuestWritable,
    ) -> Result<Self, SettingsError> {
        let home = variables.get("HOME").map(PathBuf::from);
        let path = |text: &str| match (text.strip_prefix("~/"), &home) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => PathBuf::from(text),
        };
        let read = |file: &Path| settings::read(file, writable, |text| Ok(registries(ini::parse(text, variables))));
        // Ignores a path that comes from a file that guests may write.
        let location = |file: &Path, key: &str| {
            let text = text_file::read(file, Links::Follow).ok()??;
            writable.check(file).ok()?;
            ini::parse(&text, variables).remove(key)
        };
        let of_variables = from_variables(variables);
        let builtin = installation.package.as_ref().map(|package| package.join("npmrc"));
        let user = of_variables.get("userconfig").map(|text| path(text));
        let user = user.or_else(|| home.as_ref().map(|home| home.join(".npmrc")));
        let named = |key: &str| {
            let files = [&user, &builtin].into_iter().flatten();
            of_variables.get(key).cloned().or_else(|| files.into_iter().find_map(|file| location(file, key)))
        };
        let prefix = named("prefix").or_else(|| variables.get("PREFIX").cloned()).map(|text| path(&text));
        let prefix = prefix.or_else(|| installation.prefix.clone());
        let global = named("globalconfig").map(|text| path(&text));
        let global = global.or_else(|| prefix.map(|prefix| prefix.join("etc/npmrc")));
        let mut merged = Settings::new();
        for file in [&builtin, &global, &user].into_iter().flatten() {
            merged.extend(read(file)?);
        }
        merged.extend(registries(of_variables));
        let cafile = merged.remove("cafile").map(|text| path(&text));
        let registry = merged.remove("registry");
        let scopes = merged.into_iter();
        let scopes = scopes.filter_map(|(key, url)| Some((key.strip_suffix(":registry")?.to_owned(), url))).collect();
        Ok(Self { registry, scopes, cafile })
    }
}

/// Returns only the settings that determine the source of packages.
fn registries(settings: Settings) -> Settings {
    let is_relevant =
        |key: &str| matches!(key, "registry" | "cafile") || (key.starts_with('@') && key.ends_with(":registry"));
    settings.into_iter().filter(|(key, value)| is_relevant(key) && !value.is_empty()).collect()
}

/// Returns the settings in `npm_config_*` variables, whose names may have upper and lower case.
fn from_variables(variables: &Variables) -> Settings {
    const PREFIX: &str = "npm_config_";
    let setting = |(name, value): (&String, &String)| {
        let (prefix, key) = name.split_at_checked(PREFIX.len())?;
        if !prefix.eq_ignore_ascii_case(PREFIX) || key.is_empty() || value.is_empty() {
            return None;
        }
        let first = key.chars().next()?.len_utf8();
        let key = format!("{}{}", &key[..first], key[first..].replace('_', "-")).to_lowercase();
        Some((key, value.clone()))
    };
    variables.iter().filter_map(setting).collect()
}

#[cfg(test)]
mod tests;
