//! The registries for the package mirror: those of this host's pip and npm, or those of the configuration.
//!
//! Like an installation, the mirror uses no credentials. Its requests come from this process and not from a sandbox, so
//! files of certificate authorities are read here.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_config::{GuestWritable, GuestWritten, PackageSettings};
use ringfence_egress::{NpmRegistries as MirrorNpm, PythonIndexes as MirrorPython, RegistrySource};

use super::npm::NpmRegistries;
use super::pip::PythonIndexes;
use super::settings::SettingsError;
use super::{CERTIFICATE_VARIABLES, blocking, defaults, failed, path_of, without_credentials};
use crate::context::Context;
use crate::phase::StartFailure;

/// Maximum size of a file of certificate authorities.
const MAX_CERTIFICATES: u64 = 4 << 20;

/// Returns the registries, which are determined when a package is first requested.
pub(crate) fn package_registries(context: &Arc<Context>, settings: &PackageSettings) -> RegistrySource {
    let (for_python, for_npm) = (Arc::clone(context), Arc::clone(context));
    let (python_index, npm_registry) = (settings.python_index.clone(), settings.npm_registry.clone());
    RegistrySource::new(
        move || {
            let (context, explicit) = (Arc::clone(&for_python), python_index.clone());
            async move { python(&context, explicit).await.map_err(|failure| describe(&failure)) }
        },
        move || {
            let (context, explicit) = (Arc::clone(&for_npm), npm_registry.clone());
            async move { npm(&context, explicit).await.map_err(|failure| describe(&failure)) }
        },
    )
}

fn describe(failure: &StartFailure) -> String {
    let hints = failure.hints.iter().map(|hint| format!(" (hint: {hint})"));
    std::iter::once(failure.message.clone()).chain(hints).collect()
}

/// Logs a problem, in which there are paths of the host, and returns a failure that guests may see.
fn unusable_settings(problem: &str, hint: &str) -> StartFailure {
    tracing::warn!("the package mirror has no registry: {problem}; {hint}");
    failed("the settings for packages on this host cannot be used".into()).hint("see the log of the ringfence server")
}

async fn python(context: &Context, explicit: Option<String>) -> Result<MirrorPython, StartFailure> {
    let (settings, certificates) = blocking({
        let writable = context.settings.guest_writable.clone();
        move || {
            let settings = PythonIndexes::of_host(&writable)?;
            let certificates = certificates(settings.cert.as_deref(), &writable)?;
            Ok::<_, SettingsError>((settings, certificates))
        }
    })
    .await?
    .map_err(|error| unusable_settings(&error.to_string(), error.hint()))?;
    if let Some(url) = explicit {
        return Ok(MirrorPython { urls: vec![url], certificates });
    }
    // As uv does, and unlike pip: the additional indexes come first, and a project comes from one index only, so that
    // nobody can replace a package of an internal index by publishing one with its name.
    let mut urls: Vec<String> = settings.extra_index_urls.iter().filter_map(|url| without_credentials(url)).collect();
    if settings.needs_default() {
        urls.push(default_index(context).await?);
    } else if !settings.no_index {
        urls.extend(settings.index_url.as_deref().and_then(without_credentials));
    }
    if urls.is_empty() || settings.no_index {
        return Err(failed("pip of this host has no index".into()).hint("set packages.registries.python"));
    }
    Ok(MirrorPython { urls, certificates })
}

async fn default_index(context: &Context) -> Result<String, StartFailure> {
    let writable = context.settings.guest_writable.clone();
    let pip = match blocking(move || defaults::find_pip(&writable)).await? {
        Ok(volume) => volume,
        Err(None) => {
            return Err(failed("pip was not found on this host".into())
                .hint("set packages.registries.python, or install pip (on Debian, the package python3-pip)"));
        }
        Err(Some(refused)) => {
            let problem = format!("the pip of this host cannot be used: {refused}");
            return Err(unusable_settings(&problem, GuestWritten::HINT));
        }
    };
    let printed = defaults::python_index(context, &pip).await?;
    let url = printed.first().and_then(|url| without_credentials(url));
    url.ok_or_else(|| failed("the default index of pip cannot be determined".into()))
}

async fn npm(context: &Context, explicit: Option<String>) -> Result<MirrorNpm, StartFailure> {
    let (settings, certificates) = blocking({
        let writable = context.settings.guest_writable.clone();
        move || {
            let settings = NpmRegistries::of_host(&writable)?;
            let certificates = certificates(settings.cafile.as_deref(), &writable)?;
            Ok::<_, SettingsError>((settings, certificates))
        }
    })
    .await?
    .map_err(|error| unusable_settings(&error.to_string(), error.hint()))?;
    let url = match explicit.or_else(|| settings.registry.as_deref().and_then(without_credentials)) {
        Some(url) => url,
        None if path_of("npm").is_none() => {
            return Err(failed("npm was not found on this host, or sandboxes cannot use it".into())
                .hint("set packages.registries.npm, or install Node.js with npm"));
        }
        None => defaults::npm_registry(context).await?,
    };
    let scopes = settings.scopes.into_iter();
    let scopes = scopes.filter_map(|(scope, url)| Some((scope, without_credentials(&url)?))).collect();
    Ok(MirrorNpm { url, scopes, certificates })
}

/// Reads the certificate authorities that the settings and the usual variables name.
fn certificates(setting: Option<&Path>, writable: &GuestWritable) -> Result<Vec<Vec<u8>>, SettingsError> {
    let variables = CERTIFICATE_VARIABLES.iter().filter_map(std::env::var_os).map(PathBuf::from);
    let mut paths: Vec<PathBuf> = Vec::new();
    for path in setting.map(Path::to_owned).into_iter().chain(variables) {
        if !path.as_os_str().is_empty() && !paths.contains(&path) {
            paths.push(path);
        }
    }
    let mut certificates = Vec::new();
    for path in paths {
        writable.check_tree(&path).map_err(SettingsError::GuestWritten)?;
        let unusable = |problem: String| SettingsError::Unusable { path: path.clone(), problem };
        // A directory of certificates is among those that the system uses.
        if !path.is_file() {
            continue;
        }
        let mut pem = Vec::new();
        let read = File::open(&path).and_then(|file| file.take(MAX_CERTIFICATES + 1).read_to_end(&mut pem));
        read.map_err(|error| unusable(error.to_string()))?;
        if pem.len() as u64 > MAX_CERTIFICATES {
            return Err(unusable("the file is larger than 4 MiB".into()));
        }
        certificates.push(pem);
    }
    Ok(certificates)
}

#[cfg(test)]
mod tests {
    use ringfence_core::{Access, Volume};

    use super::*;

    #[test]
    fn certificates_that_guests_may_write_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ca.pem");
        std::fs::write(&file, "pem").unwrap();
        let read = certificates(Some(&file), &GuestWritable::default()).unwrap();
        assert_eq!(read[0], b"pem");
        let missing = certificates(Some(&directory.path().join("missing")), &GuestWritable::default()).unwrap();
        assert_eq!(missing.len() + 1, read.len());
        let host = directory.path().to_owned();
        let volume = Volume { host, guest: "/shown".into(), access: Access::ReadWrite, allowed_root: None };
        assert!(certificates(Some(&file), &GuestWritable::from_volumes(&[volume])).is_err());
    }

    #[test]
    fn guests_do_not_see_paths_of_the_host() {
        let path = PathBuf::from("/home/alice/.config/pip/pip.conf");
        let error = SettingsError::Unusable { path, problem: "it is too large".into() };
        let shown = describe(&unusable_settings(&error.to_string(), error.hint()));
        assert!(shown.contains("log of the ringfence server") && !shown.contains('/'), "{shown}");
    }

    #[tokio::test]
    async fn configured_registries_replace_those_of_the_host() {
        let directory = tempfile::tempdir().unwrap();
        let settings = crate::HostSettings::new("/proc/self/exe".into(), directory.path().into());
        let context = Context::new(settings);
        let url = "https://own.example/simple".to_owned();
        assert_eq!(python(&context, Some(url.clone())).await.unwrap().urls, std::slice::from_ref(&url));
        assert_eq!(npm(&context, Some(url.clone())).await.unwrap().url, url);
    }
}
