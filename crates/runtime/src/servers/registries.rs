//! Where packages come from: asked of this host's own tools, so that an installation uses what they are set to.
//!
//! Only places are taken over, and the authorities that vouch for them: no credentials, neither from files nor from
//! addresses. A host that resolves to a private address is reached there, because this host's own settings name it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::ToSocketAddrs as _;
use std::path::{Path, PathBuf};

use ringfence_sandbox::{Access, Volume};
use serde::Deserialize;

use super::host_path::is_in_view;
use super::interpreters::{ask, path_of};
use crate::egress::Reach;

/// What an installation is given to reach a registry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Registry {
    /// Hosts to allow, as rules.
    pub(super) rules: BTreeSet<String>,
    pub(super) environment: BTreeMap<String, String>,
    pub(super) files: BTreeMap<PathBuf, String>,
    pub(super) volumes: Vec<Volume>,
}

/// Variables that name a file of certificate authorities.
const AUTHORITIES: [&str; 5] =
    ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"];

const NPMRC: &str = "/run/ringfence/npmrc";

/// Where pip is found inside.
pub(super) const PIP: &str = "/run/ringfence/pip";

/// Prints what a Python knows of its pip: where it is, and where it looks for packages.
const ASK_PIP: &str = r#"
import json, os
told = {}
try:
    import pip
    told["package"] = os.path.realpath(os.path.dirname(pip.__file__))
    from pip._internal.models.index import PyPI
    told["index"], told["files"] = PyPI.simple_url, PyPI.file_storage_domain
    from pip._internal.configuration import Configuration
    configuration = Configuration(isolated=False)
    configuration.load()
    wanted = ("index-url", "extra-index-url", "find-links", "cert", "trusted-host")
    def settings(items):
        for key, value in items:
            if isinstance(value, dict):
                yield from settings(value.items())
            elif key.rsplit(".", 1)[-1] in wanted:
                yield key.rsplit(".", 1)[-1], value
    told["settings"] = {key: str(value) for key, value in settings(configuration.items())}
except Exception:
    pass
try:
    import ensurepip, glob
    directories = [os.path.join(os.path.dirname(ensurepip.__file__), "_bundled"), "/usr/share/python-wheels"]
    wheels = [wheel for directory in directories for wheel in glob.glob(os.path.join(directory, "pip-*.whl"))]
    told["wheel"] = os.path.realpath(wheels[0])
except Exception:
    pass
print(json.dumps(told))
"#;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Pip {
    package: Option<PathBuf>,
    wheel: Option<PathBuf>,
    index: Option<String>,
    files: Option<String>,
    settings: BTreeMap<String, String>,
}

/// What installs Python packages inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Installer {
    /// pip, shown at [`PIP`], run by whatever interpreter the packages are for.
    Pip,
    Uv,
}

/// Asks npm.
pub(super) async fn npm() -> Result<Registry, String> {
    let npm = path_of("npm").ok_or("there is no npm that a sandbox can use; install Node.js with npm")?;
    let told = ask(&npm, &["config", "list", "--json"]).await.ok_or("npm does not tell which registry it uses")?;
    let told: BTreeMap<String, serde_json::Value> =
        serde_json::from_str(&told).map_err(|error| format!("npm does not tell which registry it uses: {error}"))?;
    let text = |key: &str| told.get(key).and_then(serde_json::Value::as_str);
    let mut registry = Registry::default();
    let mut lines = Vec::new();
    for (key, value) in &told {
        if (key == "registry" || (key.starts_with('@') && key.ends_with(":registry")))
            && let Some(url) = value.as_str().and_then(without_credentials)
        {
            registry.allow(&url);
            lines.push(format!("{key}={url}"));
        }
    }
    registry.add_authorities();
    if let Some(file) = text("cafile").and_then(|file| registry.show(Path::new(file))) {
        lines.push(format!("cafile={}", file.display()));
    }
    registry.files.insert(NPMRC.into(), lines.join("\n") + "\n");
    registry.environment.insert("npm_config_userconfig".into(), NPMRC.into());
    Ok(registry.resolve().await)
}

/// Asks pip: that of the interpreter that sandboxes use, or any other of this host, since pip is only Python.
pub(super) async fn python() -> Result<(Registry, Installer), String> {
    let mut registry = Registry::default();
    let mut found = Pip::default();
    for python in [path_of("python3"), Some("python3".into()), Some("python".into())].into_iter().flatten() {
        let told = ask(&python, &["-c", ASK_PIP]).await.and_then(|told| serde_json::from_str(&told).ok());
        let Some(told): Option<Pip> = told else { continue };
        let has_more =
            (told.package.is_some(), told.wheel.is_some()) > (found.package.is_some(), found.wheel.is_some());
        if has_more {
            found = told;
        }
        if found.package.is_some() {
            break;
        }
    }
    let installer = match (&found.package, &found.wheel) {
        (Some(package), _) => {
            let guest = Path::new(PIP).join("pip");
            registry.volumes.push(Volume { host: package.clone(), guest, access: Access::ReadOnly, within: None });
            Installer::Pip
        }
        (None, Some(wheel)) => {
            registry.volumes.push(Volume {
                host: wheel.clone(),
                guest: PIP.into(),
                access: Access::ReadOnly,
                within: None,
            });
            Installer::Pip
        }
        (None, None) if path_of("uv").is_some() => Installer::Uv,
        (None, None) => {
            return Err("no pip was found on this host, nor uv; install one of them (python3-pip on Debian)".into());
        }
    };
    registry.set_indexes(&found);
    registry.add_authorities();
    Ok((registry.resolve().await, installer))
}

impl Registry {
    fn set_indexes(&mut self, pip: &Pip) {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let own = pip.settings.get("index-url").cloned();
        let own = own.or_else(|| variable("UV_DEFAULT_INDEX")).or_else(|| variable("UV_INDEX_URL"));
        if let Some(url) = own.as_deref().and_then(without_credentials) {
            self.allow(&url);
            self.environment.insert("PIP_INDEX_URL".into(), url.clone());
            self.environment.insert("UV_DEFAULT_INDEX".into(), url);
        } else {
            for place in [&pip.index, &pip.files].into_iter().flatten() {
                self.allow(place);
            }
        }
        let list = |key: &str| pip.settings.get(key).map(|value| value.split_whitespace().collect::<Vec<_>>());
        let extra: Vec<String> =
            list("extra-index-url").into_iter().flatten().filter_map(without_credentials).collect();
        for url in &extra {
            self.allow(url);
        }
        let mut links: Vec<String> = Vec::new();
        for link in list("find-links").into_iter().flatten() {
            if let Some(url) = without_credentials(link) {
                self.allow(&url);
                links.push(url);
            } else if let Some(shown) = Path::new(link).is_absolute().then(|| self.show(Path::new(link))).flatten() {
                links.push(shown.display().to_string());
            }
        }
        let joined = [("PIP_EXTRA_INDEX_URL", extra), ("PIP_FIND_LINKS", links)];
        for (name, values) in joined.into_iter().filter(|(_, values)| !values.is_empty()) {
            self.environment.insert(name.into(), values.join(" "));
        }
        if let Some(hosts) = pip.settings.get("trusted-host") {
            self.environment.insert("PIP_TRUSTED_HOST".into(), hosts.clone());
        }
        if let Some(file) = pip.settings.get("cert").and_then(|file| self.show(Path::new(file))) {
            self.environment.insert("PIP_CERT".into(), file.display().to_string());
        }
    }

    fn add_authorities(&mut self) {
        for name in AUTHORITIES {
            let Some(file) = std::env::var_os(name).and_then(|file| self.show(Path::new(&file))) else { continue };
            self.environment.insert(name.into(), file.display().to_string());
        }
    }

    /// Shows a file or directory read-only where it really is, unless every sandbox has it.
    fn show(&mut self, path: &Path) -> Option<PathBuf> {
        let real = std::fs::canonicalize(path).ok()?;
        if !is_in_view(&real) && !self.volumes.iter().any(|volume| volume.guest == real) {
            self.volumes.push(Volume {
                host: real.clone(),
                guest: real.clone(),
                access: Access::ReadOnly,
                within: None,
            });
        }
        Some(real)
    }

    /// A URL's or bare host's place.
    fn allow(&mut self, url: &str) {
        self.rules.extend(place_of(url));
    }

    /// Marks the hosts whose addresses are private.
    async fn resolve(mut self) -> Self {
        let rules = std::mem::take(&mut self.rules);
        let marked = tokio::task::spawn_blocking(move || {
            let is_private = |rule: &str| {
                let place = rule.to_owned()
                    + if rule.rsplit(']').next().is_some_and(|end| end.contains(':')) { "" } else { ":443" };
                let addresses = place.to_socket_addrs();
                addresses
                    .is_ok_and(|mut all| all.any(|address| Reach::of(address.ip().to_canonical()) == Reach::Private))
            };
            rules.into_iter().map(|rule| if is_private(&rule) { rule + "+private" } else { rule }).collect()
        });
        self.rules = marked.await.unwrap_or_default();
        self
    }
}

/// A URL of the web, without user and password.
fn without_credentials(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"))?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    Some(format!("{scheme}://{host}{path}"))
}

/// `HOST[:PORT]` of a URL, or of a bare host.
fn place_of(url: &str) -> Option<String> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next()?;
    let place = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    (!place.is_empty()).then(|| place.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_addresses_without_secrets() {
        for (url, clean, place) in [
            ("https://registry.example/", "https://registry.example/", "registry.example"),
            (
                "https://me:secret@registry.example:8443/a@b",
                "https://registry.example:8443/a@b",
                "registry.example:8443",
            ),
            ("http://[::1]:4873", "http://[::1]:4873", "[::1]:4873"),
        ] {
            assert_eq!(without_credentials(url).as_deref(), Some(clean));
            assert_eq!(place_of(url).as_deref(), Some(place));
        }
        assert_eq!(place_of("files.example").as_deref(), Some("files.example"));
        assert_eq!(without_credentials("/opt/wheels"), None);
    }

    #[tokio::test]
    async fn a_private_registry_is_marked_as_one() {
        let mut registry = Registry::default();
        for url in ["http://127.0.0.1:4873/", "https://192.0.2.1/simple", "https://1.1.1.1/"] {
            registry.allow(url);
        }
        let rules: Vec<String> = registry.resolve().await.rules.into_iter().collect();
        assert_eq!(rules, ["1.1.1.1", "127.0.0.1:4873+private", "192.0.2.1+private"]);
    }

    #[test]
    fn indexes_of_a_configuration_replace_the_default() {
        let mut pip = Pip {
            index: Some("https://default.example/simple".into()),
            files: Some("files.example".into()),
            ..Pip::default()
        };
        let mut registry = Registry::default();
        registry.set_indexes(&pip);
        assert_eq!(registry.rules.iter().collect::<Vec<_>>(), ["default.example", "files.example"]);
        pip.settings.insert("index-url".into(), "https://u:p@own.example/simple".into());
        pip.settings.insert("extra-index-url".into(), "https://one.example/a\nhttps://two.example/b".into());
        let mut registry = Registry::default();
        registry.set_indexes(&pip);
        assert_eq!(registry.rules.iter().collect::<Vec<_>>(), ["one.example", "own.example", "two.example"]);
        assert_eq!(registry.environment["PIP_INDEX_URL"], "https://own.example/simple");
        assert_eq!(registry.environment["PIP_EXTRA_INDEX_URL"], "https://one.example/a https://two.example/b");
    }
}
