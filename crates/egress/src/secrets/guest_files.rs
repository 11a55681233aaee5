//! The certificates that the guest trusts, as files: those of the host and that of the sandbox's authority.
//!
//! The files are too large for the frames that create a sandbox, so they are written to a private directory of the host
//! and mounted read-only. A mount keeps its file, so the directory may be removed as soon as the sandbox exists.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ringfence_core::{Access, Root, Volume};

use super::credentials::{SandboxCredentials, pem_of};
use super::java_trust_store::{PASSWORD, java_trust_store};
use crate::tls::host_roots;

/// The guest's directory of the files.
const GUEST_DIRECTORY: &str = "/run/ringfence/tls";
const BUNDLE: &str = "ca-certificates.crt";
const JAVA_TRUST_STORE: &str = "truststore.jks";
/// The bundle of most distributions, which is covered by ours if the root has it.
const SYSTEM_BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";
const DIRECTORY_PREFIX: &str = "guest-tls-";
/// A sandbox is created in much less time.
const STALE_AGE: Duration = Duration::from_secs(3600);

/// The files of one sandbox on the host. Dropping it removes them; sandboxes that have them mounted are not affected.
#[derive(Debug)]
pub struct GuestFiles {
    directory: PathBuf,
}

impl Drop for GuestFiles {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl SandboxCredentials {
    /// Writes the files of the guest to a new directory in `parent`, which must not be beneath `/run` or `/proc`.
    pub fn write_guest_files(&self, parent: &Path) -> io::Result<GuestFiles> {
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        // Volumes may not contain symbolic links.
        let parent = parent.canonicalize()?;
        let directory = tempfile::Builder::new()
            .prefix(DIRECTORY_PREFIX)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent)?
            .keep();
        let files = GuestFiles { directory };
        let certificates = host_roots().iter().chain([self.authority.certificate()]);
        let bundle: String = certificates.clone().map(pem_of).collect();
        files.write(BUNDLE, bundle.as_bytes())?;
        files.write(JAVA_TRUST_STORE, &java_trust_store(certificates))?;
        Ok(files)
    }
}

impl GuestFiles {
    fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let path = self.directory.join(name);
        fs::write(&path, content)?;
        // The guest has another uid.
        fs::set_permissions(&path, Permissions::from_mode(0o444))
    }

    /// Returns the mounts for a sandbox with this root.
    pub fn volumes(&self, root: &Root) -> Vec<Volume> {
        let volume = |name: &str, guest: PathBuf| Volume {
            host: self.directory.join(name),
            guest,
            access: Access::ReadOnly,
            allowed_root: None,
        };
        let own = [BUNDLE, JAVA_TRUST_STORE].map(|name| volume(name, Path::new(GUEST_DIRECTORY).join(name)));
        let covered = has_system_bundle(root).then(|| volume(BUNDLE, SYSTEM_BUNDLE.into()));
        own.into_iter().chain(covered).collect()
    }

    /// Removes directories in `parent` that a killed process has left.
    pub fn remove_stale(parent: &Path) {
        let is_stale = |entry: &fs::DirEntry| {
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            let age = modified.ok().and_then(|modified| SystemTime::now().duration_since(modified).ok());
            entry.file_name().to_string_lossy().starts_with(DIRECTORY_PREFIX) && age.is_some_and(|age| age > STALE_AGE)
        };
        for entry in fs::read_dir(parent).into_iter().flatten().flatten().filter(is_stale) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns whether the root has the system bundle as a regular file, without links on the way: only then can another file
/// be mounted over it.
fn has_system_bundle(root: &Root) -> bool {
    let root = match root {
        Root::Host => Path::new("/"),
        Root::Directory(directory) => directory,
    };
    let mut path = root.to_owned();
    let mut parts =
        Path::new(SYSTEM_BUNDLE).strip_prefix("/").unwrap_or(Path::new(SYSTEM_BUNDLE)).components().peekable();
    while let Some(part) = parts.next() {
        path.push(part);
        let Ok(metadata) = fs::symlink_metadata(&path) else { return false };
        let is_expected = if parts.peek().is_some() { metadata.is_dir() } else { metadata.is_file() };
        if !is_expected {
            return false;
        }
    }
    true
}

/// The variables that make common programs trust the files. No single one is read by all programs.
pub(super) fn certificate_environment() -> BTreeMap<String, String> {
    const OF_BUNDLE: [&str; 9] = [
        // OpenSSL and what uses it: curl, Python's ssl, Ruby; also Go, uv and rustls-native-certs.
        "SSL_CERT_FILE",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS",
        "npm_config_cafile",
        "GIT_SSL_CAINFO",
        "PIP_CERT",
        "DENO_CERT",
        "AWS_CA_BUNDLE",
    ];
    let bundle = format!("{GUEST_DIRECTORY}/{BUNDLE}");
    let java = format!(
        "-Djavax.net.ssl.trustStore={GUEST_DIRECTORY}/{JAVA_TRUST_STORE} -Djavax.net.ssl.trustStoreType=JKS \
         -Djavax.net.ssl.trustStorePassword={PASSWORD}"
    );
    let bundles = OF_BUNDLE.map(|name| (name.to_owned(), bundle.clone()));
    bundles.into_iter().chain([("JAVA_TOOL_OPTIONS".to_owned(), java)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_exist_until_they_are_dropped() {
        let parent = tempfile::tempdir().unwrap();
        let credentials = SandboxCredentials::generate(&[]).unwrap();
        let files = credentials.write_guest_files(parent.path()).unwrap();
        let empty_root = tempfile::tempdir().unwrap();
        let volumes = files.volumes(&Root::Directory(empty_root.path().to_owned()));
        let environment = credentials.environment();
        assert_eq!(volumes.len(), 2, "an absent bundle cannot be covered");
        assert_eq!(volumes[0].guest.to_str(), environment.get("SSL_CERT_FILE").map(String::as_str));
        assert!(environment["JAVA_TOOL_OPTIONS"].contains(volumes[1].guest.to_str().unwrap()));
        for volume in &volumes {
            let mode = fs::metadata(&volume.host).unwrap().permissions().mode();
            assert_eq!((mode & 0o777, volume.access), (0o444, Access::ReadOnly));
        }
        let bundle = fs::read_to_string(&volumes[0].host).unwrap();
        assert!(bundle.ends_with(&credentials.ca_pem()));
        assert!(!bundle.contains("PRIVATE"));

        GuestFiles::remove_stale(parent.path());
        assert!(volumes[0].host.exists(), "a new directory is not stale");
        let old = fs::File::open(&files.directory).unwrap();
        old.set_modified(SystemTime::now() - STALE_AGE * 2).unwrap();
        GuestFiles::remove_stale(parent.path());
        assert!(!volumes[0].host.exists());
        let files = credentials.write_guest_files(parent.path()).unwrap();
        drop(files);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn system_bundle_is_covered_only_if_it_is_a_file() {
        let root = tempfile::tempdir().unwrap();
        let certs = root.path().join("etc/ssl/certs");
        let has = || has_system_bundle(&Root::Directory(root.path().to_owned()));
        fs::create_dir_all(&certs).unwrap();
        assert!(!has());
        fs::write(certs.join("real.crt"), "").unwrap();
        std::os::unix::fs::symlink("real.crt", certs.join("ca-certificates.crt")).unwrap();
        assert!(!has());
        fs::remove_file(certs.join("ca-certificates.crt")).unwrap();
        fs::write(certs.join("ca-certificates.crt"), "").unwrap();
        assert!(has());
    }
}
