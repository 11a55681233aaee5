//! The parts of a repository that git executes or reads as settings: hooks, settings, and files that name other
//! directories.
//!
//! The rest of a repository may be written, so that `git add` and `git commit` work. What a guest writes there can still
//! lead git to a repository that the guest made elsewhere in the volume; see decision 4.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, chownat, mkdirat, openat2, statat};
use rustix::io::Errno;

use super::walk::{Found, Pin, Walk};
use super::{Refusal, open_directory};

/// Read-only in a repository. `modules` and `worktrees` hold the repositories of submodules and the settings of
/// linked worktrees.
const PARTS: [&str; 7] = ["hooks", "info", "config", "config.worktree", "commondir", "modules", "worktrees"];

/// Created if they do not exist, and not removed: git accepts empty ones.
const MADE: [&str; 2] = ["hooks", "info"];

/// Git reads these as soon as they exist, so an empty placeholder would change its behaviour.
pub(super) const WATCHED: [&str; 4] = ["hooks", "config", "commondir", "config.worktree"];

/// Maximum number of references: a `.git` file names a repository, whose `commondir` may name one more.
const MAX_DEPTH: usize = 3;

/// Protects the repository that `path` leads to, if it leads to one in the volume.
pub(super) fn protect(walk: &mut Walk<'_>, path: &Path) -> Result<Found, Refusal> {
    protect_at(walk, path, MAX_DEPTH)
}

fn protect_at(walk: &mut Walk<'_>, path: &Path, depth: usize) -> Result<Found, Refusal> {
    let Some(depth) = depth.checked_sub(1) else { return Ok(Found::Elsewhere) };
    let found = walk.resolve(path).map_err(|errno| Refusal::of(path, errno))?;
    match &found {
        Found::Directory(repository) => protect_parts(walk, repository, depth)?,
        Found::File(file) => {
            walk.pin(file.clone(), Pin::ReadOnly);
            if let Some(target) = named_in(walk, file, b"gitdir: ")? {
                protect_at(walk, &target, depth)?;
            }
        }
        _ => {}
    }
    Ok(found)
}

fn protect_parts(walk: &mut Walk<'_>, repository: &Path, depth: usize) -> Result<(), Refusal> {
    for part in MADE {
        make(walk, repository, part).map_err(|errno| Refusal::of(&repository.join(part), errno))?;
    }
    for part in PARTS {
        let path = repository.join(part);
        match walk.resolve(&path).map_err(|errno| Refusal::of(&path, errno))? {
            Found::Directory(found) | Found::File(found) => walk.pin(found, Pin::ReadOnly),
            Found::Special => return Err(Refusal::special(&path)),
            Found::Absent(_) | Found::Elsewhere => {}
        }
    }
    let common = repository.join("commondir");
    if let Found::File(file) = walk.resolve(&common).map_err(|errno| Refusal::of(&common, errno))?
        && let Some(target) = named_in(walk, &file, b"")?
    {
        protect_at(walk, &target, depth)?;
    }
    Ok(())
}

fn make(walk: &Walk<'_>, repository: &Path, part: &str) -> Result<(), Errno> {
    let directory = open_directory(walk.volume(), repository)?;
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

/// The path, from the top of the volume, that a file names after `prefix`, if it lies in the volume.
fn named_in(walk: &Walk<'_>, file: &Path, prefix: &[u8]) -> Result<Option<PathBuf>, Refusal> {
    let mut text = [0; 4096];
    // Does not block: neither on a FIFO without a writer, nor on a guest's lease on the file.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let read = openat2(walk.volume(), file, flags, Mode::empty(), resolve)
        .and_then(|opened| rustix::io::read(&opened, &mut text));
    let length = match read {
        // git on the host cannot read it either, and the guest cannot change its mode: it is pinned.
        Err(Errno::ACCESS) => return Ok(None),
        read => read.map_err(|errno| Refusal::of(file, errno))?,
    };
    let Some(named) = text[..length].strip_prefix(prefix) else { return Ok(None) };
    let named = Path::new(std::ffi::OsStr::from_bytes(named.trim_ascii_end()));
    if named.as_os_str().is_empty() {
        return Ok(None);
    }
    if named.is_absolute() {
        return Ok(named.strip_prefix(walk.real()).ok().map(Path::to_owned));
    }
    Ok(Some(file.parent().unwrap_or(Path::new("")).join(named)))
}
