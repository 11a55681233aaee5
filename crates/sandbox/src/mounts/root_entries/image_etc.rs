//! The `/etc` of an image in which the sandbox replaces some files.
//!
//! The image is not trusted: such a file may be missing, or a link to anywhere. So the directory is not mounted as a
//! whole. The sandbox makes its own `/etc`, with a mount for each other entry of the image's, and a link for each link.

use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use rustix::io::Errno;

use super::{RootEntry, mirror};

/// Maximum number of entries. Each needs an open descriptor during the start.
const MAX_ENTRIES: usize = 512;

/// Lists the image's `/etc` without the names in `replaced`.
pub(super) fn entries(etc: &Path, replaced: &[&str]) -> Result<Vec<RootEntry>> {
    match fs::symlink_metadata(etc) {
        Ok(metadata) if metadata.is_dir() => {}
        // A link would lead out of the image, and a file cannot have entries.
        Ok(_) => return Err(Error::from(Errno::NOTDIR)),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    }
    let mut entries = Vec::new();
    for entry in fs::read_dir(etc)? {
        let name = entry?.file_name();
        if replaced.iter().any(|replaced| *replaced == name) {
            continue;
        }
        if entries.len() == MAX_ENTRIES {
            return Err(Error::from(Errno::TOOBIG));
        }
        entries.extend(mirror(&etc.join(&name), &Path::new("etc").join(&name))?);
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::volumes::NodeKind;

    #[test]
    fn replaced_names_are_left_out_whatever_they_are() {
        let image = tempfile::tempdir().unwrap();
        let etc = image.path().join("etc");
        assert_eq!(entries(&etc, &["hosts"]).unwrap(), [], "an image without /etc");
        fs::create_dir_all(etc.join("hosts")).unwrap();
        fs::create_dir(etc.join("ssl")).unwrap();
        symlink("/etc/shadow", etc.join("resolv.conf")).unwrap();
        symlink("/etc/shadow", etc.join("link")).unwrap();
        let mut found = entries(&etc, &["hosts", "resolv.conf"]).unwrap();
        found.sort_by_key(|entry| matches!(entry, RootEntry::Link { .. }));
        let ssl = RootEntry::Bind { host: etc.join("ssl"), guest: "etc/ssl".into(), kind: NodeKind::Directory };
        let link = RootEntry::Link { guest: "etc/link".into(), target: "/etc/shadow".into() };
        assert_eq!(found, [ssl, link]);
    }

    #[test]
    fn link_in_place_of_etc_and_too_many_entries_are_refused() {
        let image = tempfile::tempdir().unwrap();
        let etc = image.path().join("etc");
        symlink("/etc", &etc).unwrap();
        assert_eq!(entries(&etc, &[]).unwrap_err().kind(), ErrorKind::NotADirectory);
        fs::remove_file(&etc).unwrap();
        fs::create_dir(&etc).unwrap();
        for number in 0..=MAX_ENTRIES {
            fs::write(etc.join(number.to_string()), "").unwrap();
        }
        assert_eq!(entries(&etc, &[]).unwrap_err().kind(), ErrorKind::ArgumentListTooLong);
        assert_eq!(entries(&etc, &["0"]).unwrap().len(), MAX_ENTRIES);
    }
}
