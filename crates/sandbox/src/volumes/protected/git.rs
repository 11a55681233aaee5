//! The parts of a repository that git executes or reads as settings: hooks, settings, and files with the path of
//! another repository.
//!
//! The rest of a repository may be written, so that `git add` and `git commit` work. A guest can still make git use a
//! repository that the guest created elsewhere in the volume; see docs/decisions/0004-protected-names.md.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, chownat, mkdirat, openat2, statat};
use rustix::io::Errno;

use super::pins::{PathPinner, Pin, Resolved};
use super::{ProtectError, open_directory};

/// The parts that are read-only. `modules` and `worktrees` contain the repositories of submodules and the settings of
/// linked worktrees.
const PARTS: [&str; 7] = ["hooks", "info", "config", "config.worktree", "commondir", "modules", "worktrees"];

/// The parts that are created if they do not exist, and not removed: git accepts empty ones.
const CREATED: [&str; 2] = ["hooks", "info"];

/// The parts whose creation is reported. Git reads them as soon as they exist, so an empty placeholder would change its
/// behaviour.
pub(super) const WATCHED: [&str; 4] = ["hooks", "config", "commondir", "config.worktree"];

/// Maximum number of references: a `.git` file refers to a repository, whose `commondir` may refer to another.
const MAX_DEPTH: usize = 3;

/// Protects the repository at `path`, if it is in the volume.
pub(super) fn protect(pinner: &mut PathPinner<'_>, path: &Path) -> Result<Resolved, ProtectError> {
    protect_at(pinner, path, MAX_DEPTH)
}

fn protect_at(pinner: &mut PathPinner<'_>, path: &Path, depth: usize) -> Result<Resolved, ProtectError> {
    let Some(depth) = depth.checked_sub(1) else { return Ok(Resolved::Elsewhere) };
    let resolved = pinner.resolve(path).map_err(|errno| ProtectError::unprotectable(path, errno))?;
    match &resolved {
        Resolved::Directory(repository) => protect_parts(pinner, repository, depth)?,
        Resolved::File(file) => {
            pinner.pin(file.clone(), Pin::ReadOnly);
            if let Some(target) = named_path(pinner, file, b"gitdir: ")? {
                protect_at(pinner, &target, depth)?;
            }
        }
        _ => {}
    }
    Ok(resolved)
}

fn protect_parts(pinner: &mut PathPinner<'_>, repository: &Path, depth: usize) -> Result<(), ProtectError> {
    for part in CREATED {
        create(pinner, repository, part).map_err(|errno| ProtectError::unprotectable(&repository.join(part), errno))?;
    }
    for part in PARTS {
        let path = repository.join(part);
        match pinner.resolve(&path).map_err(|errno| ProtectError::unprotectable(&path, errno))? {
            Resolved::Directory(found) | Resolved::File(found) => pinner.pin(found, Pin::ReadOnly),
            Resolved::Special => return Err(ProtectError::special_file(&path)),
            Resolved::Absent(_) | Resolved::Elsewhere => {}
        }
    }
    let common = repository.join("commondir");
    if let Resolved::File(file) =
        pinner.resolve(&common).map_err(|errno| ProtectError::unprotectable(&common, errno))?
        && let Some(target) = named_path(pinner, &file, b"")?
    {
        protect_at(pinner, &target, depth)?;
    }
    Ok(())
}

fn create(pinner: &PathPinner<'_>, repository: &Path, part: &str) -> Result<(), Errno> {
    let directory = open_directory(pinner.volume(), repository)?;
    match mkdirat(&directory, part, Mode::from_raw_mode(0o755)) {
        Ok(()) => {
            // If root creates it, it must belong to the repository's owner like the rest.
            let owner = statat(&directory, ".", AtFlags::empty())?;
            let (uid, gid) = (rustix::fs::Uid::from_raw(owner.st_uid), rustix::fs::Gid::from_raw(owner.st_gid));
            match chownat(&directory, part, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::PERM) => Ok(()),
                result => result,
            }
        }
        // If this process may not create it, neither may the guest.
        Err(Errno::EXIST | Errno::ACCESS | Errno::PERM | Errno::ROFS) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Returns the path that a file contains after `prefix`, from the top of the volume. `None` if it is outside.
fn named_path(pinner: &PathPinner<'_>, file: &Path, prefix: &[u8]) -> Result<Option<PathBuf>, ProtectError> {
    let mut text = [0; 4096];
    // Does not block: neither on a FIFO without a writer, nor on a guest's lease on the file.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let read = openat2(pinner.volume(), file, flags, Mode::empty(), resolve)
        .and_then(|opened| rustix::io::read(&opened, &mut text));
    let length = match read {
        // git on the host cannot read it either, and the guest cannot change its mode, because it is pinned.
        Err(Errno::ACCESS) => return Ok(None),
        read => read.map_err(|errno| ProtectError::unprotectable(file, errno))?,
    };
    let Some(path) = text[..length].strip_prefix(prefix) else { return Ok(None) };
    let path = Path::new(std::ffi::OsStr::from_bytes(path.trim_ascii_end()));
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    if path.is_absolute() {
        return Ok(path.strip_prefix(pinner.real()).ok().map(Path::to_owned));
    }
    Ok(Some(file.parent().unwrap_or(Path::new("")).join(path)))
}
