//! The package registries for installations, from this host's settings of pip and npm.
//!
//! This module parses the settings itself and runs no program on the host. A setting that guests could have written is
//! an error. Without a setting, the installed pip or npm prints its default inside a sandbox without network.
//! Credentials are never used, neither from files nor from URLs. Hosts that resolve to private addresses are allowed,
//! because the settings name them.

mod defaults;
mod npm;
mod pip;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::net::ToSocketAddrs as _;
use std::path::{Path, PathBuf};

use ringfence_core::{Access, Volume};

pub(crate) use npm::NpmRegistries;
pub(crate) use pip::PythonIndexes;

use super::host::Host;
use super::host_path::is_in_view;
use super::interpreters::path_of;
use super::phase::{Phase, StartFailure};
pub(crate) use defaults::PIP;
use ringfence_config::{GuestWritable, GuestWritten};
use ringfence_egress::AddressClass;
use settings::SettingsError;

/// What an installation is given to reach a registry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Registry {
    /// Hosts to allow, as rules.
    pub(crate) rules: BTreeSet<String>,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) files: BTreeMap<PathBuf, String>,
    pub(crate) volumes: Vec<Volume>,
}

/// Variables that name a file of certificate authorities.
const AUTHORITIES: [&str; 5] =
    ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"];

const NPMRC: &str = "/run/ringfence/npmrc";

/// What installs Python packages inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Installer {
    /// pip, shown at [`PIP`], run by the interpreter that the packages are for.
    Pip,
    Uv,
}

fn failed(why: String) -> StartFailure {
    StartFailure::lasting(Phase::DepInstall, why)
}

impl From<SettingsError> for StartFailure {
    fn from(error: SettingsError) -> Self {
        failed(error.to_string()).hint(error.hint())
    }
}

/// The registries of npm.
pub(crate) async fn npm(host: &Host) -> Result<Registry, StartFailure> {
    let writable = &host.0.settings.guest_writable;
    if path_of("npm").is_none() {
        return Err(failed("there is no npm that a sandbox can use".into()).hint("install Node.js with npm"));
    }
    let settings = blocking({
        let writable = writable.clone();
        move || NpmRegistries::of_host(&writable)
    })
    .await??;
    let default = match &settings.registry {
        Some(url) => url.clone(),
        None => defaults::npm_registry(host).await?,
    };
    Registry::for_npm(&settings, &default, writable)?.resolve().await
}

/// The indexes of pip, and how packages are installed from them.
pub(crate) async fn python(host: &Host) -> Result<(Registry, Installer), StartFailure> {
    let writable = &host.0.settings.guest_writable;
    let (settings, pip) = blocking({
        let writable = writable.clone();
        move || PythonIndexes::of_host(&writable).map(|settings| (settings, defaults::find_pip(&writable)))
    })
    .await??;
    let mut registry = Registry::for_python(&settings, writable)?;
    let installer = match pip {
        Ok(volume) => {
            if settings.needs_default() {
                for place in defaults::python_index(host, &volume).await? {
                    registry.allow(&place);
                }
            }
            registry.volumes.push(volume);
            Installer::Pip
        }
        Err(None) if path_of("uv").is_some() => Installer::Uv,
        Err(None) => {
            return Err(failed("no pip was found on this host, nor uv".into())
                .hint("install one of them (python3-pip on Debian)"));
        }
        Err(Some(refused)) => {
            return Err(failed(format!("the pip of this host is not used: {refused}")).hint(GuestWritten::HINT));
        }
    };
    Ok((registry.resolve().await?, installer))
}

/// The reason why an installation of this kind would be refused because of its settings, if any. Reads files; may
/// block.
pub(crate) fn check(kind: Kind, writable: &GuestWritable) -> Result<(), SettingsError> {
    match kind {
        Kind::Npm => NpmRegistries::of_host(writable).map(drop),
        Kind::Python => PythonIndexes::of_host(writable).map(drop),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Npm,
    Python,
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, StartFailure> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.map_err(|error| StartFailure::transient(Phase::DepInstall, error.to_string()))
}

impl Registry {
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
        registry.add_authorities(writable)?;
        if let Some(file) = &settings.cafile
            && let Some(file) = registry.show(file, writable)?
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
                && let Some(shown) = registry.show(Path::new(link), writable)?
            {
                links.push(shown.display().to_string());
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
        registry.add_authorities(writable)?;
        if let Some(file) = &settings.cert
            && let Some(file) = registry.show(file, writable)?
        {
            registry.environment.insert("PIP_CERT".into(), file.display().to_string());
        }
        Ok(registry)
    }

    fn add_authorities(&mut self, writable: &GuestWritable) -> Result<(), SettingsError> {
        for name in AUTHORITIES {
            let Some(file) = std::env::var_os(name).filter(|file| !file.is_empty()) else { continue };
            if let Some(file) = self.show(Path::new(&file), writable)? {
                self.environment.insert(name.into(), file.display().to_string());
            }
        }
        Ok(())
    }

    /// Shows a file or directory read-only at its real path, unless every sandbox has it. `None` if there is none.
    fn show(&mut self, path: &Path, writable: &GuestWritable) -> Result<Option<PathBuf>, SettingsError> {
        writable.check_tree(path).map_err(SettingsError::GuestWritten)?;
        let Ok(real) = std::fs::canonicalize(path) else { return Ok(None) };
        if !is_in_view(&real) && !self.volumes.iter().any(|volume| volume.guest == real) {
            self.volumes.push(read_only(&real, &real));
        }
        Ok(Some(real))
    }

    /// Allows the host of a URL, or a bare host.
    fn allow(&mut self, url: &str) {
        self.rules.extend(host_and_port(url));
    }

    /// Marks the hosts whose addresses are private.
    async fn resolve(mut self) -> Result<Self, StartFailure> {
        let rules = std::mem::take(&mut self.rules);
        self.rules = blocking(move || {
            let is_private = |rule: &str| {
                let has_port = rule.rsplit(']').next().is_some_and(|end| end.contains(':'));
                let addresses = format!("{rule}{}", if has_port { "" } else { ":443" }).to_socket_addrs();
                addresses.is_ok_and(|mut all| {
                    all.any(|address| AddressClass::of(address.ip().to_canonical()) == AddressClass::Private)
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

/// A URL of the web, without user and password.
fn without_credentials(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"))?;
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    (!host.is_empty()).then(|| format!("{scheme}://{host}{path}"))
}

fn host_and_port(url: &str) -> Option<String> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    (!host.is_empty()).then(|| host.to_owned())
}

#[cfg(test)]
mod tests;
