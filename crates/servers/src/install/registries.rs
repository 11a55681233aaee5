//! The package registries for installations, from this host's settings of pip and npm.
//!
//! This module parses the settings itself and runs no program on the host. A setting that guests could have written is
//! an error. Without a setting, the installed pip or npm prints its default inside a sandbox without network.
//! Credentials are never used, neither from files nor from URLs. Hosts that resolve to private addresses are allowed,
//! because the settings name them.

mod defaults;
mod mirror;
mod npm;
mod pip;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::net::ToSocketAddrs as _;
use std::path::{Path, PathBuf};

use ringfence_core::{Access, Volume};

use super::interpreters::path_of;
use crate::context::Context;
use crate::phase::{Phase, StartFailure};
use crate::plan::{Ecosystem, is_in_every_sandbox};
pub(super) use defaults::PIP_DIRECTORY;
pub(crate) use mirror::package_registries;
use npm::NpmRegistries;
use pip::PythonIndexes;
use ringfence_config::{GuestWritable, GuestWritten};
use ringfence_egress::AddressClass;
use settings::SettingsError;

/// Everything that an installation needs to connect to its registries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RegistryAccess {
    /// Hosts to allow, as rules of the egress proxy.
    pub(super) rules: BTreeSet<String>,
    pub(super) environment: BTreeMap<String, String>,
    pub(super) files: BTreeMap<PathBuf, String>,
    pub(super) volumes: Vec<Volume>,
}

/// Variables that name a file of certificate authorities.
const CERTIFICATE_VARIABLES: [&str; 5] =
    ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"];

/// The path of npm's settings inside the sandbox.
const NPMRC: &str = "/run/ringfence/npmrc";

/// The program that installs Python packages inside the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PythonInstaller {
    /// pip, mounted at [`PIP_DIRECTORY`] and run by the interpreter that the packages are for.
    Pip,
    Uv,
}

fn failed(message: String) -> StartFailure {
    StartFailure::permanent(Phase::DepInstall, message)
}

impl From<SettingsError> for StartFailure {
    fn from(error: SettingsError) -> Self {
        failed(error.to_string()).hint(error.hint())
    }
}

/// Returns the access to the registries of npm.
pub(super) async fn npm(context: &Context) -> Result<RegistryAccess, StartFailure> {
    let writable = &context.settings.guest_writable;
    if path_of("npm").is_none() {
        return Err(failed("npm was not found on this host, or sandboxes cannot use it".into())
            .hint("install Node.js with npm on this host"));
    }
    let settings = blocking({
        let writable = writable.clone();
        move || NpmRegistries::of_host(&writable)
    })
    .await??;
    let default = match &settings.registry {
        Some(url) => url.clone(),
        None => defaults::npm_registry(context).await?,
    };
    RegistryAccess::for_npm(&settings, &default, writable)?.resolve().await
}

/// Returns the access to the indexes of pip, and the program that installs from them.
pub(super) async fn python(context: &Context) -> Result<(RegistryAccess, PythonInstaller), StartFailure> {
    let writable = &context.settings.guest_writable;
    let (settings, pip) = blocking({
        let writable = writable.clone();
        move || PythonIndexes::of_host(&writable).map(|settings| (settings, defaults::find_pip(&writable)))
    })
    .await??;
    let mut registry = RegistryAccess::for_python(&settings, writable)?;
    let installer = match pip {
        Ok(volume) => {
            if settings.needs_default() {
                for url in defaults::python_index(context, &volume).await? {
                    registry.allow(&url);
                }
            }
            registry.volumes.push(volume);
            PythonInstaller::Pip
        }
        Err(None) if path_of("uv").is_some() => PythonInstaller::Uv,
        Err(None) => {
            return Err(failed("neither pip nor uv was found on this host".into())
                .hint("install one of them (on Debian, the package python3-pip)"));
        }
        Err(Some(refused)) => {
            return Err(failed(format!("the pip of this host cannot be used: {refused}")).hint(GuestWritten::HINT));
        }
    };
    Ok((registry.resolve().await?, installer))
}

/// Checks the settings of an ecosystem's registries, as an installation would. Reads files; may block.
pub(crate) fn check_settings(ecosystem: Ecosystem, writable: &GuestWritable) -> Result<(), SettingsError> {
    match ecosystem {
        Ecosystem::Npm => NpmRegistries::of_host(writable).map(drop),
        Ecosystem::Python => PythonIndexes::of_host(writable).map(drop),
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, StartFailure> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.map_err(|error| StartFailure::transient(Phase::DepInstall, error.to_string()))
}

impl RegistryAccess {
    fn for_npm(settings: &NpmRegistries, default: &str, writable: &GuestWritable) -> Result<Self, SettingsError> {
        let mut registry = Self::default();
        let mut lines = Vec::new();
        let scopes = settings.scopes.iter().map(|(scope, url)| (format!("{scope}:registry"), url.as_str()));
        for (key, url) in std::iter::once(("registry".to_owned(), default)).chain(scopes) {
            if let Some(url) = without_credentials(url) {
                registry.allow(&url);
                lines.push(format!("{key}={url}"));
            }
        }
        registry.add_certificates(writable)?;
        if let Some(file) = &settings.cafile
            && let Some(file) = registry.mount(file, writable)?
        {
            lines.push(format!("cafile={}", file.display()));
        }
        registry.files.insert(NPMRC.into(), lines.join("\n") + "\n");
        registry.environment.insert("npm_config_userconfig".into(), NPMRC.into());
        Ok(registry)
    }

    fn for_python(settings: &PythonIndexes, writable: &GuestWritable) -> Result<Self, SettingsError> {
        let mut registry = Self::default();
        if let Some(url) = settings.index_url.as_deref().and_then(without_credentials) {
            registry.allow(&url);
            registry.environment.insert("PIP_INDEX_URL".into(), url.clone());
            registry.environment.insert("UV_DEFAULT_INDEX".into(), url);
        }
        if settings.no_index {
            registry.environment.insert("PIP_NO_INDEX".into(), "1".into());
        }
        let extra: Vec<String> = settings.extra_index_urls.iter().filter_map(|url| without_credentials(url)).collect();
        for url in &extra {
            registry.allow(url);
        }
        let mut links: Vec<String> = Vec::new();
        for link in &settings.find_links {
            if let Some(url) = without_credentials(link) {
                registry.allow(&url);
                links.push(url);
            } else if Path::new(link).is_absolute()
                && let Some(mounted) = registry.mount(Path::new(link), writable)?
            {
                links.push(mounted.display().to_string());
            }
        }
        let joined = [
            ("PIP_EXTRA_INDEX_URL", extra),
            ("PIP_FIND_LINKS", links),
            ("PIP_TRUSTED_HOST", settings.trusted_hosts.clone()),
        ];
        for (name, values) in joined.into_iter().filter(|(_, values)| !values.is_empty()) {
            registry.environment.insert(name.into(), values.join(" "));
        }
        registry.add_certificates(writable)?;
        if let Some(file) = &settings.cert
            && let Some(file) = registry.mount(file, writable)?
        {
            registry.environment.insert("PIP_CERT".into(), file.display().to_string());
        }
        Ok(registry)
    }

    fn add_certificates(&mut self, writable: &GuestWritable) -> Result<(), SettingsError> {
        for name in CERTIFICATE_VARIABLES {
            let Some(file) = std::env::var_os(name).filter(|file| !file.is_empty()) else { continue };
            if let Some(file) = self.mount(Path::new(&file), writable)? {
                self.environment.insert(name.into(), file.display().to_string());
            }
        }
        Ok(())
    }

    /// Mounts a file or directory read-only at its real path, unless every sandbox has it. Returns that path, or `None`
    /// if it does not exist.
    fn mount(&mut self, path: &Path, writable: &GuestWritable) -> Result<Option<PathBuf>, SettingsError> {
        writable.check_tree(path).map_err(SettingsError::GuestWritten)?;
        let Ok(real) = std::fs::canonicalize(path) else { return Ok(None) };
        if !is_in_every_sandbox(&real) && !self.volumes.iter().any(|volume| volume.guest == real) {
            self.volumes.push(read_only(&real, &real));
        }
        Ok(Some(real))
    }

    /// Allows connections to the host of a URL, or to a bare host.
    fn allow(&mut self, url: &str) {
        self.rules.extend(host_and_port(url));
    }

    /// Resolves the hosts, and marks the rules of those with private addresses.
    async fn resolve(mut self) -> Result<Self, StartFailure> {
        let rules = std::mem::take(&mut self.rules);
        self.rules = blocking(move || {
            let is_private = |rule: &str| {
                let has_port = rule.rsplit(']').next().is_some_and(|end| end.contains(':'));
                let addresses = format!("{rule}{}", if has_port { "" } else { ":443" }).to_socket_addrs();
                addresses.is_ok_and(|mut addresses| {
                    addresses.any(|address| AddressClass::of(address.ip().to_canonical()) == AddressClass::Private)
                })
            };
            rules.into_iter().map(|rule| if is_private(&rule) { rule + "+private" } else { rule }).collect()
        })
        .await?;
        Ok(self)
    }
}

fn read_only(host: &Path, guest: &Path) -> Volume {
    Volume { host: host.to_owned(), guest: guest.to_owned(), access: Access::ReadOnly, allowed_root: None }
}

/// Returns an HTTP URL without user and password, or `None` for other text.
fn without_credentials(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"))?;
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    (!host.is_empty()).then(|| format!("{scheme}://{host}{path}"))
}

/// Returns the host of a URL, with the port if the URL has one.
fn host_and_port(url: &str) -> Option<String> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    (!host.is_empty()).then(|| host.to_owned())
}

#[cfg(test)]
mod tests;
