//! Names in a read-write volume that the guest must not write, because programs on the host execute these files or read
//! them as settings: git hooks, shell start files, settings of editors and MCP clients, keys.
//!
//! A name that exists is mounted read-only over itself, and so are the targets of its links in the volume. A name that
//! does not exist is not created; [`VolumeWatch`] detects when it appears. In a strict volume it is created for the
//! lifetime of the sandbox ([`Hold`]), and repositories are entirely read-only.
//! This module does not protect names deeper in a volume than its top and the homes in it.

mod git;
mod hold;
mod names;
mod places;
mod walk;
mod watch;

#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

pub(crate) use hold::Hold;
use names::Form;
use places::Place;
pub(crate) use walk::Pin;
use walk::{Found, Walk};
pub use watch::{Change, NameChange, VolumeWatch};

use crate::view::Kind;

/// A volume with such a path component is refused: programs on the host import modules from it.
const NEVER: [&str; 2] = ["site-packages", "dist-packages"];

/// Paths from the top of a volume, outer ones first.
pub(crate) type Pins = Vec<(PathBuf, Pin)>;

/// Why a volume cannot be protected.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// From the top of the volume.
    pub(crate) path: PathBuf,
    pub(crate) source: Errno,
    pub(crate) hint: String,
}

impl Refusal {
    fn new(path: impl Into<PathBuf>, source: Errno, hint: impl Into<String>) -> Self {
        Self { path: path.into(), source, hint: hint.into() }
    }

    fn of(path: &Path, source: Errno) -> Self {
        Self::new(
            path,
            source,
            "programs on the host execute it or read it as settings, and it cannot be protected; mount the volume `ro`",
        )
    }

    fn special(path: &Path) -> Self {
        let hint = "it is neither a file nor a directory and cannot be protected; remove it, or mount the volume `ro`";
        Self::new(path, Errno::ACCESS, hint)
    }
}

/// Returns the mounts for a read-write volume, and its [`Hold`] on the placeholders if it is strict: `locks` is the
/// directory for their locks.
///
/// Every path is resolved from the volume's descriptor, because a guest may have written anything in it. `real` is the
/// volume's path on the host; `kept` are ringfence's own paths.
pub(crate) fn protect(
    volume: &OwnedFd,
    real: &Path,
    kept: &[(PathBuf, Kind)],
    locks: Option<&Path>,
) -> Result<(Pins, Option<Hold>), Refusal> {
    if real.components().any(|part| NEVER.iter().any(|never| part.as_os_str() == *never)) {
        return Err(Refusal::new("", Errno::ACCESS, "programs on the host import modules from it; mount it `ro`"));
    }
    let places = places::in_volume(real).map_err(|errno| {
        Refusal::new("", errno, "it contains the homes of too many users; mount it `ro`, or mount single homes")
    })?;
    let mut walk = Walk::new(volume, real);
    let mut hold = None;
    if let Some(locks) = locks {
        hold = Some(protect_strictly(&mut walk, &places, kept, locks)?);
    } else {
        for place in &places {
            protect_existing(&mut walk, place)?;
        }
    }
    for (path, kind) in kept {
        walk.resolve(path).map_err(|errno| Refusal::of(path, errno))?;
        walk.pin(path.clone(), if *kind == Kind::Directory { Pin::Hidden } else { Pin::ReadOnly });
    }
    Ok((walk.into_pins(), hold))
}

fn protect_existing(walk: &mut Walk<'_>, place: &Place) -> Result<(), Refusal> {
    let found = match place.form {
        Form::Git => return git::protect(walk, &place.path).and_then(|found| refuse_special(&found, place)),
        Form::Directory | Form::File(_) => {
            walk.resolve(&place.path).map_err(|errno| Refusal::of(&place.path, errno))?
        }
    };
    refuse_special(&found, place)?;
    if let Found::Directory(path) | Found::File(path) = found {
        walk.pin(path, Pin::ReadOnly);
    }
    Ok(())
}

fn refuse_special(found: &Found, place: &Place) -> Result<(), Refusal> {
    if *found == Found::Special { Err(Refusal::special(&place.path)) } else { Ok(()) }
}

fn protect_strictly(
    walk: &mut Walk<'_>,
    places: &[Place],
    kept: &[(PathBuf, Kind)],
    locks: &Path,
) -> Result<Hold, Refusal> {
    let below = locks.strip_prefix(walk.real()).ok();
    if below.is_some_and(|locks| !kept.iter().any(|(kept, _)| locks.starts_with(kept))) {
        return Err(Refusal::new(
            "",
            Errno::ACCESS,
            "it contains the state directory, which guests could then lock; choose another volume or state directory",
        ));
    }
    let locked = |errno| Refusal::new("", errno, format!("its placeholders cannot be locked in {}", locks.display()));
    let (mut hold, _turn) = Hold::begin(locks, walk.volume()).map_err(locked)?;
    for place in places {
        let refuse = |errno| Refusal::of(&place.path, errno);
        let found = walk.resolve(&place.path).map_err(refuse)?;
        refuse_special(&found, place)?;
        match found {
            Found::Directory(path) | Found::File(path) => {
                hold.adopt(&path, place.form);
                walk.pin(path, Pin::ReadOnly);
            }
            Found::Absent(missing) if place.is_watched => {
                let held = hold_missing(&mut hold, place, missing).map_err(refuse)?;
                if let Some(held) = held {
                    walk.resolve(&held).map_err(refuse)?;
                    walk.pin(held, Pin::ReadOnly);
                }
            }
            Found::Absent(_) | Found::Elsewhere | Found::Special => {}
        }
    }
    Ok(hold)
}

/// Creates a placeholder for the first missing component of a path, or shares one that exists already.
fn hold_missing(hold: &mut Hold, place: &Place, missing: PathBuf) -> Result<Option<PathBuf>, Errno> {
    if let Some(parent) = missing.parent().filter(|parent| !parent.as_os_str().is_empty())
        && hold.adopt(parent, Form::Directory)
    {
        return Ok(Some(parent.to_owned()));
    }
    let form = if missing.file_name() == place.path.file_name() { place.form } else { Form::Directory };
    match hold.make(&missing, form) {
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
