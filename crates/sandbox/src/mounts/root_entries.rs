//! The entries of the guest's root directory, as data: the host lists them, and the init makes them.

mod etc;
mod image_etc;
mod name_resolution;

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::volumes::NodeKind;
use ringfence_core::{Network, Root, Spec};

/// An entry of the guest's root. `guest` is relative to the root.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RootEntry {
    /// A directory or file of the host, mounted read-only.
    Bind {
        host: PathBuf,
        guest: PathBuf,
        kind: NodeKind,
    },
    Link {
        guest: PathBuf,
        target: PathBuf,
    },
    File {
        guest: PathBuf,
        text: String,
    },
    Directory {
        guest: PathBuf,
    },
}

/// The host's directories of programs and libraries, or links to them if `/usr` is merged.
const SYSTEM_DIRECTORIES: [&str; 7] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// Directories that every sandbox has, independent of its root.
const FIXED_DIRECTORIES: [&str; 7] = ["dev", "etc", "proc", "run", "tmp", "var", "workspace"];

/// Lists the entries of the root, except the contents of `/dev` and `/proc`, the workspace and the volumes.
pub(crate) fn list_root_entries(spec: &Spec) -> std::io::Result<Vec<RootEntry>> {
    let mut entries: Vec<RootEntry> =
        FIXED_DIRECTORIES.iter().map(|name| RootEntry::Directory { guest: name.into() }).collect();
    entries.push(RootEntry::Link { guest: "var/tmp".into(), target: "/tmp".into() });
    match &spec.root {
        Root::Host => {
            for name in SYSTEM_DIRECTORIES {
                entries.extend(mirror(&Path::new("/").join(name), Path::new(name))?);
            }
            entries.extend(etc::entries(Path::new("/etc"))?);
            entries.extend(identity_files(spec.uid));
            entries.extend(name_resolution::files(&spec.network));
        }
        Root::Directory(directory) => {
            for entry in fs::read_dir(directory)? {
                let name = PathBuf::from(entry?.file_name());
                // `/etc` comes from the image; the other fixed directories come from the sandbox.
                let is_fixed = FIXED_DIRECTORIES.iter().any(|fixed| *fixed != "etc" && Path::new(fixed) == name);
                // With egress, some files of `/etc` are those of the sandbox.
                let is_listed_below = name == Path::new("etc") && spec.network != Network::None;
                if !is_fixed && !is_listed_below && name != Path::new("sys") {
                    entries.extend(mirror(&directory.join(&name), &name)?);
                }
            }
            if spec.network != Network::None {
                entries.extend(image_etc::entries(&directory.join("etc"), &name_resolution::NAMES)?);
                entries.extend(name_resolution::files(&spec.network));
            }
        }
    }
    for (path, text) in &spec.files {
        let guest = relative(path).to_owned();
        for directory in guest
            .ancestors()
            .skip(1)
            .filter(|directory| *directory != Path::new(""))
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
        {
            let entry = RootEntry::Directory { guest: directory.to_owned() };
            if !entries.contains(&entry) {
                entries.push(entry);
            }
        }
        entries.push(RootEntry::File { guest, text: text.clone() });
    }
    Ok(entries)
}

/// Returns the entry for a host path: a link for a link, and otherwise a read-only mount. `None` if it does not exist.
fn mirror(host: &Path, guest: &Path) -> std::io::Result<Option<RootEntry>> {
    let metadata = match fs::symlink_metadata(host) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if metadata.is_symlink() {
        return Ok(Some(RootEntry::Link { guest: guest.to_owned(), target: fs::read_link(host)? }));
    }
    let kind = if metadata.is_dir() { NodeKind::Directory } else { NodeKind::File };
    Ok(Some(RootEntry::Bind { host: host.to_owned(), guest: guest.to_owned(), kind }))
}

/// The files in `/etc` with the guest's user, group and host name.
fn identity_files(uid: u32) -> impl Iterator<Item = RootEntry> {
    let passwd = format!(
        "agent:x:{uid}:{uid}:agent:/workspace:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    );
    let files = [
        ("passwd", passwd),
        ("group", format!("agent:x:{uid}:\nnogroup:x:65534:\n")),
        ("hostname", "ringfence\n".into()),
    ];
    let links = [("os-release", "../usr/lib/os-release"), ("mtab", "/proc/self/mounts")];
    files.into_iter().map(|(name, text)| RootEntry::File { guest: Path::new("etc").join(name), text }).chain(
        links.map(|(name, target)| RootEntry::Link { guest: Path::new("etc").join(name), target: target.into() }),
    )
}

/// Returns a path without its leading slash, to be resolved from the guest's root.
pub(super) fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}
