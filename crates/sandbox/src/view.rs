//! What the guest's root directory holds, as data: computed on the host, built inside by `mounts`.

mod etc;

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use ringfence_core::{Root, Spec};

/// An entry of the guest's root; paths are relative to it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Entry {
    /// A directory or file of the host, read-only.
    Bind {
        host: PathBuf,
        guest: PathBuf,
        kind: Kind,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Directory,
    File,
}

/// Host directories (or links, where `/usr` is merged) that programs and their libraries live in.
const SYSTEM: [&str; 7] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// Directories that exist in every sandbox, whatever its root.
const ALWAYS: [&str; 7] = ["dev", "etc", "proc", "run", "tmp", "var", "workspace"];

/// Lists what the guest will see, apart from `/dev`, `/proc`, the workspace and the volumes.
pub(crate) fn entries(spec: &Spec) -> std::io::Result<Vec<Entry>> {
    let mut entries: Vec<Entry> = ALWAYS.iter().map(|name| Entry::Directory { guest: name.into() }).collect();
    entries.push(Entry::Link { guest: "var/tmp".into(), target: "/tmp".into() });
    match &spec.root {
        Root::Host => {
            for name in SYSTEM {
                entries.extend(mirror(&Path::new("/").join(name), Path::new(name))?);
            }
            entries.extend(etc::entries(Path::new("/etc"))?);
            entries.extend(identity_files(spec.uid));
        }
        Root::Directory(directory) => {
            for entry in fs::read_dir(directory)? {
                let name = PathBuf::from(entry?.file_name());
                // `/etc` is the image's own; the other fixed directories are the sandbox's.
                let ours = ALWAYS.iter().any(|ours| *ours != "etc" && Path::new(ours) == name);
                if !ours && name != Path::new("sys") {
                    entries.extend(mirror(&directory.join(&name), &name)?);
                }
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
            let entry = Entry::Directory { guest: directory.to_owned() };
            if !entries.contains(&entry) {
                entries.push(entry);
            }
        }
        entries.push(Entry::File { guest, text: text.clone() });
    }
    Ok(entries)
}

/// Shows a host path at the same place: a link as a link, all else as a read-only mount.
fn mirror(host: &Path, guest: &Path) -> std::io::Result<Option<Entry>> {
    let metadata = match fs::symlink_metadata(host) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if metadata.is_symlink() {
        return Ok(Some(Entry::Link { guest: guest.to_owned(), target: fs::read_link(host)? }));
    }
    let kind = if metadata.is_dir() { Kind::Directory } else { Kind::File };
    Ok(Some(Entry::Bind { host: host.to_owned(), guest: guest.to_owned(), kind }))
}

/// The few files of `/etc` that say who and where the guest is.
fn identity_files(uid: u32) -> impl Iterator<Item = Entry> {
    let passwd = format!(
        "agent:x:{uid}:{uid}:agent:/workspace:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    );
    let files = [
        ("passwd", passwd),
        ("group", format!("agent:x:{uid}:\nnogroup:x:65534:\n")),
        ("hosts", "127.0.0.1 localhost ringfence\n::1 localhost\n".into()),
        ("hostname", "ringfence\n".into()),
        ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n".into()),
        ("resolv.conf", "# names are resolved by the egress proxy, where there is one\n".into()),
    ];
    let links = [("os-release", "../usr/lib/os-release"), ("mtab", "/proc/self/mounts")];
    files
        .into_iter()
        .map(|(name, text)| Entry::File { guest: Path::new("etc").join(name), text })
        .chain(links.map(|(name, target)| Entry::Link { guest: Path::new("etc").join(name), target: target.into() }))
}

/// The path without its leading slash, to be resolved from the guest's root.
pub(crate) fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}
