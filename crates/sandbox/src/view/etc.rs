//! The public parts of the host's `/etc` that programs need.
//!
//! A guest with the uid of the user who started it may also have that user's groups, so a directory with private keys
//! must not appear in the view at all. Directories that mix public and private files (`/etc/ssl`, `/etc/pki`) are
//! therefore listed entry by entry, and nothing is shown that is not readable by everyone.

use std::fs::{self, Metadata};
use std::io::{ErrorKind, Result};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{Entry, mirror};

/// Shown completely: the linker's cache, Debian's alternatives, crypto policies, time zone, fonts, public tables.
const WHOLE: [&str; 7] =
    ["ld.so.cache", "alternatives", "crypto-policies", "localtime", "fonts", "mime.types", "services"];

/// Directories of which only these entries are shown. A directory comes before those inside it.
const PARTIAL: [(&str, &[&str]); 4] = [
    ("ca-certificates", &["extracted", "trust-source"]),
    ("ssl", &["certs", "cert.pem", "ca-bundle.pem", "openssl.cnf", "openssl.cnf.d", "ct_log_list.cnf"]),
    ("pki", &["ca-trust", "java"]),
    ("pki/tls", &["certs", "cert.pem", "openssl.cnf", "openssl.d", "ct_log_list.cnf"]),
];

/// Lists the public parts of `etc`, the host's `/etc`.
pub(super) fn entries(etc: &Path) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for name in WHOLE {
        entries.extend(show(etc, Path::new(name))?);
    }
    for (directory, names) in PARTIAL {
        let directory = Path::new(directory);
        let Some(metadata) = public(&etc.join(directory))? else { continue };
        if metadata.is_symlink() {
            entries.extend(mirror(&etc.join(directory), &Path::new("etc").join(directory))?);
            continue;
        }
        entries.push(Entry::Directory { guest: Path::new("etc").join(directory) });
        for name in names {
            entries.extend(show(etc, &directory.join(name))?);
        }
    }
    Ok(entries)
}

fn show(etc: &Path, name: &Path) -> Result<Option<Entry>> {
    let host = etc.join(name);
    match public(&host)? {
        Some(_) => mirror(&host, &Path::new("etc").join(name)),
        None => Ok(None),
    }
}

/// The metadata of a path that everyone may read (and enter, if it is a directory); `None` for any other.
fn public(path: &Path) -> Result<Option<Metadata>> {
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
    use crate::view::Kind;

    fn make(etc: &Path, name: &str, mode: u32) {
        let path = etc.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn private_keys_are_not_listed() {
        let etc = tempfile::tempdir().unwrap();
        let etc = etc.path();
        make(etc, "ssl/certs/authority.pem", 0o644);
        make(etc, "ssl/openssl.cnf", 0o644);
        make(etc, "ssl/private/host.key", 0o644);
        make(etc, "pki/tls/private/host.key", 0o644);
        make(etc, "pki/tls/certs/authority.pem", 0o644);
        make(etc, "pki/consumer/key.pem", 0o644);
        // Public by name, but only for a group.
        make(etc, "pki/tls/openssl.cnf", 0o640);
        make(etc, "services", 0o640);
        make(etc, "shadow", 0o644);

        let bind = |name: &str, kind| Entry::Bind { host: etc.join(name), guest: Path::new("etc").join(name), kind };
        let directory = |name: &str| Entry::Directory { guest: Path::new("etc").join(name) };
        let expected = vec![
            directory("ssl"),
            bind("ssl/certs", Kind::Directory),
            bind("ssl/openssl.cnf", Kind::File),
            directory("pki"),
            directory("pki/tls"),
            bind("pki/tls/certs", Kind::Directory),
        ];
        assert_eq!(entries(etc).unwrap(), expected);
    }

    #[test]
    fn directory_for_a_group_only_is_left_out() {
        let etc = tempfile::tempdir().unwrap();
        make(etc.path(), "ssl/certs/authority.pem", 0o644);
        fs::set_permissions(etc.path().join("ssl"), fs::Permissions::from_mode(0o750)).unwrap();
        assert_eq!(entries(etc.path()).unwrap(), vec![]);
    }

    #[test]
    fn linked_directory_stays_a_link() {
        let etc = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("pki/tls", etc.path().join("ssl")).unwrap();
        let link = Entry::Link { guest: "etc/ssl".into(), target: "pki/tls".into() };
        assert_eq!(entries(etc.path()).unwrap(), vec![link]);
    }
}
