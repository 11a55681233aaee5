//! The public parts of the host's `/etc` that programs need.
//!
//! A guest with the uid of the user who started it may also have that user's groups, so a directory with private keys
//! must not appear in the sandbox at all. Directories that mix public and private files (`/etc/ssl`, `/etc/pki`) are
//! therefore listed entry by entry, and only files that everyone may read are included.

use std::fs::{self, Metadata};
use std::io::{ErrorKind, Result};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{RootEntry, mirror};

/// Entries that are included completely: the linker's cache, Debian's alternatives, crypto policies, time zone, fonts,
/// public tables.
const WHOLE: [&str; 7] =
    ["ld.so.cache", "alternatives", "crypto-policies", "localtime", "fonts", "mime.types", "services"];

/// Directories of which only these entries are included. A directory comes before the directories inside it.
const PARTIAL: [(&str, &[&str]); 4] = [
    ("ca-certificates", &["extracted", "trust-source"]),
    ("ssl", &["certs", "cert.pem", "ca-bundle.pem", "openssl.cnf", "openssl.cnf.d", "ct_log_list.cnf"]),
    ("pki", &["ca-trust", "java"]),
    ("pki/tls", &["certs", "cert.pem", "openssl.cnf", "openssl.d", "ct_log_list.cnf"]),
];

/// Directories of Debian's Java, which does not start without its settings, and their entries. `management` may have
/// passwords.
const JAVA: [&str; 5] = ["java-8-openjdk", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "java-25-openjdk"];
const JAVA_ENTRIES: &[&str] = &["security", "net.properties", "logging.properties"];

/// Lists the public parts of `etc`, the host's `/etc`.
pub(super) fn entries(etc: &Path) -> Result<Vec<RootEntry>> {
    let mut entries = Vec::new();
    for name in WHOLE {
        entries.extend(public_entry(etc, Path::new(name))?);
    }
    for (directory, names) in PARTIAL.into_iter().chain(JAVA.map(|directory| (directory, JAVA_ENTRIES))) {
        let directory = Path::new(directory);
        let Some(metadata) = public_metadata(&etc.join(directory))? else { continue };
        if metadata.is_symlink() {
            entries.extend(mirror(&etc.join(directory), &Path::new("etc").join(directory))?);
            continue;
        }
        entries.push(RootEntry::Directory { guest: Path::new("etc").join(directory) });
        for name in names {
            entries.extend(public_entry(etc, &directory.join(name))?);
        }
    }
    Ok(entries)
}

fn public_entry(etc: &Path, name: &Path) -> Result<Option<RootEntry>> {
    let host = etc.join(name);
    match public_metadata(&host)? {
        Some(_) => mirror(&host, &Path::new("etc").join(name)),
        None => Ok(None),
    }
}

/// Returns the metadata of a path that everyone may read (and enter, if it is a directory); `None` for other paths.
fn public_metadata(path: &Path) -> Result<Option<Metadata>> {
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => return Ok(None),
        found => found?,
    };
    let needed = if metadata.is_dir() { 0o5 } else { 0o4 };
    let is_public = metadata.is_symlink() || metadata.permissions().mode() & needed == needed;
    Ok(is_public.then_some(metadata))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::NodeKind;

    fn write(etc: &Path, name: &str, mode: u32) {
        let path = etc.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn private_keys_are_not_listed() {
        let etc = tempfile::tempdir().unwrap();
        let etc = etc.path();
        write(etc, "ssl/certs/authority.pem", 0o644);
        write(etc, "ssl/openssl.cnf", 0o644);
        write(etc, "ssl/private/host.key", 0o644);
        write(etc, "pki/tls/private/host.key", 0o644);
        write(etc, "pki/tls/certs/authority.pem", 0o644);
        write(etc, "pki/consumer/key.pem", 0o644);
        // Listed, but only a group may read it.
        write(etc, "pki/tls/openssl.cnf", 0o640);
        write(etc, "services", 0o640);
        write(etc, "java-17-openjdk/security/java.security", 0o644);
        write(etc, "java-17-openjdk/management/jmxremote.password", 0o644);
        write(etc, "shadow", 0o644);

        let bind =
            |name: &str, kind| RootEntry::Bind { host: etc.join(name), guest: Path::new("etc").join(name), kind };
        let directory = |name: &str| RootEntry::Directory { guest: Path::new("etc").join(name) };
        let expected = vec![
            directory("ssl"),
            bind("ssl/certs", NodeKind::Directory),
            bind("ssl/openssl.cnf", NodeKind::File),
            directory("pki"),
            directory("pki/tls"),
            bind("pki/tls/certs", NodeKind::Directory),
            directory("java-17-openjdk"),
            bind("java-17-openjdk/security", NodeKind::Directory),
        ];
        assert_eq!(entries(etc).unwrap(), expected);
    }

    #[test]
    fn directory_that_only_a_group_may_read_is_not_listed() {
        let etc = tempfile::tempdir().unwrap();
        write(etc.path(), "ssl/certs/authority.pem", 0o644);
        fs::set_permissions(etc.path().join("ssl"), fs::Permissions::from_mode(0o750)).unwrap();
        assert_eq!(entries(etc.path()).unwrap(), vec![]);
    }

    #[test]
    fn linked_directory_is_listed_as_a_link() {
        let etc = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("pki/tls", etc.path().join("ssl")).unwrap();
        let link = RootEntry::Link { guest: "etc/ssl".into(), target: "pki/tls".into() };
        assert_eq!(entries(etc.path()).unwrap(), vec![link]);
    }
}
