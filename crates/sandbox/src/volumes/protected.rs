//! Protected names: names in a read-write volume that the guest must not write, because programs on the host execute
//! these files or read them as settings (git hooks, shell start files, settings of editors and MCP clients, keys). The
//! list is in `names.rs`.
//!
//! A name that exists gets a pin: it is mounted read-only over itself, and so are the targets of its links in the
//! volume. A name that does not exist is not created; [`VolumeWatch`] detects when it appears. In a strict volume it is
//! created for the lifetime of the sandbox ([`Placeholders`]), and repositories are entirely read-only.
//!
//! Only names at the top of a volume and in home directories inside it are protected.

mod git;
mod names;
mod paths;
mod pins;
mod placeholders;
mod watch;

#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use names::Form;
use paths::ProtectedPath;
pub(crate) use pins::Pin;
use pins::{PathPinner, Resolved};
pub(crate) use placeholders::Placeholders;
pub use watch::{Change, NameChange, VolumeWatch};

use super::NodeKind;

/// A volume with such a path component is refused: programs on the host import modules from it.
const FORBIDDEN_COMPONENTS: [&str; 2] = ["site-packages", "dist-packages"];

/// Paths from the top of a volume, outer ones first.
pub(crate) type Pins = Vec<(PathBuf, Pin)>;

/// The reason why a volume cannot be protected.
#[derive(Debug)]
pub(crate) struct ProtectError {
    /// From the top of the volume.
    pub(crate) path: PathBuf,
    pub(crate) source: Errno,
    pub(crate) hint: String,
}

impl ProtectError {
    fn new(path: impl Into<PathBuf>, source: Errno, hint: impl Into<String>) -> Self {
        Self { path: path.into(), source, hint: hint.into() }
    }

    fn unprotectable(path: &Path, source: Errno) -> Self {
        Self::new(
            path,
            source,
            "programs on the host execute this path or read it as settings, and it cannot be protected; mount the volume `ro`",
        )
    }

    fn special_file(path: &Path) -> Self {
        let hint =
            "this path is neither a file nor a directory and cannot be protected; remove it, or mount the volume `ro`";
        Self::new(path, Errno::ACCESS, hint)
    }
}

/// Returns the pins of a read-write volume, and its placeholders if it is strict: `locks` is the directory for their
/// locks.
///
/// Every path is resolved from the volume's descriptor, because a guest may have written anything in it. `real` is the
/// volume's path on the host; `ringfence_nodes` are ringfence's own files, by their paths in the volume.
pub(crate) fn protect(
    volume: &OwnedFd,
    real: &Path,
    ringfence_nodes: &[(PathBuf, NodeKind)],
    locks: Option<&Path>,
) -> Result<(Pins, Option<Placeholders>), ProtectError> {
    if real.components().any(|part| FORBIDDEN_COMPONENTS.iter().any(|name| part.as_os_str() == *name)) {
        return Err(ProtectError::new(
            "",
            Errno::ACCESS,
            "programs on the host import modules from this path; mount it `ro`",
        ));
    }
    let paths = paths::in_volume(real).map_err(|errno| {
        ProtectError::new(
            "",
            errno,
            "this path contains too many home directories; mount it `ro`, or mount single homes",
        )
    })?;
    let mut pinner = PathPinner::new(volume, real);
    let mut placeholders = None;
    if let Some(locks) = locks {
        placeholders = Some(protect_strictly(&mut pinner, &paths, ringfence_nodes, locks)?);
    } else {
        for path in &paths {
            protect_existing(&mut pinner, path)?;
        }
    }
    for (path, kind) in ringfence_nodes {
        pinner.resolve(path).map_err(|errno| ProtectError::unprotectable(path, errno))?;
        pinner.pin(path.clone(), if *kind == NodeKind::Directory { Pin::Hidden } else { Pin::ReadOnly });
    }
    Ok((pinner.into_pins(), placeholders))
}

fn protect_existing(pinner: &mut PathPinner<'_>, protected: &ProtectedPath) -> Result<(), ProtectError> {
    let resolved = match protected.form {
        Form::Git => {
            return git::protect(pinner, &protected.path).and_then(|resolved| refuse_special(&resolved, protected));
        }
        Form::Directory | Form::File(_) => {
            pinner.resolve(&protected.path).map_err(|errno| ProtectError::unprotectable(&protected.path, errno))?
        }
    };
    refuse_special(&resolved, protected)?;
    if let Resolved::Directory(path) | Resolved::File(path) = resolved {
        pinner.pin(path, Pin::ReadOnly);
    }
    Ok(())
}

fn refuse_special(resolved: &Resolved, protected: &ProtectedPath) -> Result<(), ProtectError> {
    if *resolved == Resolved::Special { Err(ProtectError::special_file(&protected.path)) } else { Ok(()) }
}

fn protect_strictly(
    pinner: &mut PathPinner<'_>,
    paths: &[ProtectedPath],
    ringfence_nodes: &[(PathBuf, NodeKind)],
    locks: &Path,
) -> Result<Placeholders, ProtectError> {
    let locks_in_volume = locks.strip_prefix(pinner.real()).ok();
    if locks_in_volume.is_some_and(|locks| !ringfence_nodes.iter().any(|(hidden, _)| locks.starts_with(hidden))) {
        return Err(ProtectError::new(
            "",
            Errno::ACCESS,
            "this path contains the state directory, in which guests could then lock files; choose another volume or state directory",
        ));
    }
    let lock_failed = |errno| {
        ProtectError::new("", errno, format!("the placeholders of this volume cannot be locked in {}", locks.display()))
    };
    let (mut placeholders, _lock) = Placeholders::join(locks, pinner.volume()).map_err(lock_failed)?;
    for protected in paths {
        let refuse = |errno| ProtectError::unprotectable(&protected.path, errno);
        let resolved = pinner.resolve(&protected.path).map_err(refuse)?;
        refuse_special(&resolved, protected)?;
        match resolved {
            Resolved::Directory(path) | Resolved::File(path) => {
                placeholders.adopt(&path, protected.form);
                pinner.pin(path, Pin::ReadOnly);
            }
            Resolved::Absent(missing) if protected.is_watched => {
                let created = create_placeholder(&mut placeholders, protected, missing).map_err(refuse)?;
                if let Some(path) = created {
                    pinner.resolve(&path).map_err(refuse)?;
                    pinner.pin(path, Pin::ReadOnly);
                }
            }
            Resolved::Absent(_) | Resolved::Elsewhere | Resolved::Special => {}
        }
    }
    Ok(placeholders)
}

/// Creates a placeholder for the first missing component of a path, or shares an existing placeholder. Returns its
/// path.
fn create_placeholder(
    placeholders: &mut Placeholders,
    protected: &ProtectedPath,
    missing: PathBuf,
) -> Result<Option<PathBuf>, Errno> {
    if let Some(parent) = missing.parent().filter(|parent| !parent.as_os_str().is_empty())
        && placeholders.adopt(parent, Form::Directory)
    {
        return Ok(Some(parent.to_owned()));
    }
    let form = if missing.file_name() == protected.path.file_name() { protected.form } else { Form::Directory };
    match placeholders.create(&missing, form) {
        Ok(()) => Ok(Some(missing)),
        // If this process may not create it, neither may the guest.
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Opens a directory in a volume without following a link. An empty path is the volume itself.
fn open_directory(volume: impl AsFd, path: &Path) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(volume, path, flags, Mode::empty(), resolve)
}
