//! Checks volumes before a sandbox starts.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use super::protected::{self, Pin, Pins, Placeholders};
use super::{CheckedVolume, NodeKind, VolumeDescription, open};
use crate::error::{Error, errno_of};
use ringfence_core::{Access, Spec, Volume};

/// Directories that show or control the host, or contain sockets of its services. A process that can reach a socket in
/// a volume can connect to it, even if the volume is read-only.
const FORBIDDEN: [&str; 4] = ["/proc", "/sys", "/dev", "/run"];

/// Desktops mount removable disks here.
const ALLOWED: &str = "/run/media";

/// Checks every volume, and creates the placeholders of strict volumes.
pub(crate) fn check_volumes(spec: &Spec) -> Result<(Vec<CheckedVolume>, Vec<Placeholders>), Error> {
    let mut checked = Vec::new();
    let mut placeholders = Vec::new();
    for volume in &spec.volumes {
        let (volume, created) = check(volume, &spec.protected_paths, spec.strict_volumes.as_deref())?;
        checked.push(volume);
        placeholders.extend(created);
    }
    // Outer volumes are mounted first, so that they do not hide inner ones.
    checked.sort_by_key(|volume| volume.description.guest.components().count());
    Ok((checked, placeholders))
}

/// `ringfence_paths` are the real paths of ringfence's own files; `locks` is the lock directory of strict volumes.
fn check(
    volume: &Volume,
    ringfence_paths: &[PathBuf],
    locks: Option<&Path>,
) -> Result<(CheckedVolume, Option<Placeholders>), Error> {
    let refuse = |source, hint: String| Error::Volume { path: volume.host.clone(), source, hint };
    let opened = open(volume).map_err(|source| {
        let hint = volume.allowed_root.as_ref().map_or_else(|| open_hint(source).into(), |root| root.explain(source));
        refuse(source, hint)
    })?;
    let stat = rustix::fs::fstat(&opened).map_err(|source| refuse(source, "check the path".into()))?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => NodeKind::Directory,
        FileType::RegularFile => NodeKind::File,
        // A guest that can write the directory could have created the link.
        FileType::Symlink => {
            let target = fs::read_link(&volume.host).unwrap_or_default();
            return Err(refuse(
                Errno::LOOP,
                format!("this path is a symbolic link; use its target if that is intended: {}", target.display()),
            ));
        }
        _ => {
            let hint =
                "only directories and regular files can be mounted: a socket or device would lead out of the sandbox";
            return Err(refuse(Errno::INVAL, hint.into()));
        }
    };
    let real = fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd()))
        .map_err(|error| refuse(errno_of(&error), "check that /proc is mounted".into()))?;
    // A guest could also have created a link in the middle of the path.
    if std::path::absolute(&volume.host).ok().as_ref() != Some(&real) {
        return Err(refuse(
            Errno::LOOP,
            format!("this path contains a symbolic link; use the real path if that is intended: {}", real.display()),
        ));
    }
    let is_beneath = |directory: &&str| real.starts_with(directory);
    let is_too_broad = ["/", "/tmp"].iter().any(|directory| real == Path::new(directory));
    if is_too_broad || (FORBIDDEN.iter().any(is_beneath) && !is_beneath(&ALLOWED)) {
        let hint = "this path shows or controls the host itself, or contains sockets of its services; choose a directory with data";
        return Err(refuse(Errno::PERM, hint.into()));
    }
    let mut ringfence_nodes: Vec<(PathBuf, NodeKind)> = Vec::new();
    for path in ringfence_paths.iter().filter_map(|path| path.strip_prefix(&real).ok()) {
        let kind = kind_of(&opened, path).map_err(|source| {
            refuse(source, format!("the volume contains {}, which guests must not see or write", path.display()))
        })?;
        ringfence_nodes.push((path.to_owned(), kind));
    }
    let (pins, placeholders) = match (volume.access, kind) {
        (Access::ReadWrite, NodeKind::Directory) => protected::protect(&opened, &real, &ringfence_nodes, locks)
            .map_err(|error| {
                let path = if error.path.as_os_str().is_empty() { real.clone() } else { real.join(error.path) };
                Error::Volume { path, source: error.source, hint: error.hint }
            })?,
        _ => (hidden(&ringfence_nodes), None),
    };
    let description = VolumeDescription {
        host: volume.host.clone(),
        guest: volume.guest.clone(),
        access: volume.access,
        kind,
        owner: (stat.st_uid, stat.st_gid),
        pins,
    };
    Ok((CheckedVolume { opened, description }, placeholders))
}

/// Returns pins that hide ringfence's directories, which a guest must not see even in a read-only volume. A directory
/// inside a hidden one needs no pin.
fn hidden(nodes: &[(PathBuf, NodeKind)]) -> Pins {
    let directories = nodes.iter().filter(|(_, kind)| *kind == NodeKind::Directory).map(|(path, _)| path);
    let is_outermost =
        |path: &&PathBuf| !path.ancestors().skip(1).any(|above| nodes.iter().any(|(node, _)| node == above));
    directories.filter(is_outermost).map(|path| (path.clone(), Pin::Hidden)).collect()
}

/// Returns the kind of an object in a volume. The volume itself is refused, because it cannot be hidden.
fn kind_of(volume: &OwnedFd, path: &Path) -> Result<NodeKind, Errno> {
    if path.as_os_str().is_empty() {
        return Err(Errno::PERM);
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let found = rustix::fs::fstat(openat2(volume, path, flags, Mode::empty(), resolve)?)?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => Ok(NodeKind::Directory),
        FileType::RegularFile => Ok(NodeKind::File),
        _ => Err(Errno::INVAL),
    }
}

fn open_hint(source: Errno) -> &'static str {
    match source {
        Errno::NOENT => "create the directory first: ringfence does not create volumes",
        Errno::ACCESS => "choose a path that you may read",
        _ => "check the path",
    }
}
