//! Lists the protected paths of a volume: at its top, in home directories inside it, and in the home directory that
//! contains it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::names::{Form, NAMES, Name, Scope};

/// A protected name at a path in a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProtectedPath {
    /// From the top of the volume; never empty.
    pub(super) path: PathBuf,
    pub(super) form: Form,
    /// Whether its creation is reported, or prevented if the volume is strict.
    pub(super) is_watched: bool,
}

/// Maximum number of home directories in one volume; a volume with more is refused.
const MAX_HOMES: usize = 64;

/// Lists the protected paths of the volume whose real path is `volume`.
pub(super) fn in_volume(volume: &Path) -> Result<Vec<ProtectedPath>, Errno> {
    with_homes(volume, &homes())
}

fn with_homes(volume: &Path, homes: &BTreeSet<PathBuf>) -> Result<Vec<ProtectedPath>, Errno> {
    let mut paths = Vec::new();
    let is_home = homes.contains(volume);
    for name in NAMES {
        let is_watched = match name.scope {
            Scope::Project => true,
            Scope::Home | Scope::HomeOnly => is_home,
            Scope::Existing => false,
        };
        if is_home || name.scope != Scope::HomeOnly {
            paths.push(protected(name, name.path.into(), is_watched));
        }
    }
    let inner: Vec<&Path> = homes.iter().filter_map(|home| home.strip_prefix(volume).ok()).collect();
    if inner.len() > MAX_HOMES {
        return Err(Errno::TOOBIG);
    }
    for home in inner.into_iter().filter(|home| !home.as_os_str().is_empty()) {
        paths.extend(NAMES.iter().map(|name| protected(name, home.join(name.path), name.scope != Scope::Existing)));
    }
    for path_in_home in homes.iter().filter_map(|home| volume.strip_prefix(home).ok()) {
        if path_in_home.as_os_str().is_empty() {
            continue;
        }
        for name in NAMES.iter().filter(|name| matches!(name.scope, Scope::Home | Scope::HomeOnly)) {
            // If the volume is a protected name or inside one, the user has chosen that explicitly.
            if let Ok(rest) = Path::new(name.path).strip_prefix(path_in_home)
                && !rest.as_os_str().is_empty()
            {
                paths.push(protected(name, rest.to_owned(), true));
            }
        }
    }
    Ok(paths)
}

fn protected(name: &Name, path: PathBuf, is_watched: bool) -> ProtectedPath {
    ProtectedPath { path, form: name.form, is_watched }
}

/// The home directories of this host's users.
fn homes() -> BTreeSet<PathBuf> {
    let current = std::env::var_os("HOME").map(PathBuf::from);
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let listed = passwd.lines().filter_map(|line| line.split(':').nth(5)).map(PathBuf::from);
    let homes = current.into_iter().chain(listed).filter(|home| home.is_absolute() && home.parent().is_some());
    // By both paths, because a home directory may be behind a link: on some systems /home is one.
    homes.flat_map(|home| [home.canonicalize().ok(), Some(home)]).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(volume: &str) -> Vec<String> {
        let homes = ["/home/a", "/home/b"].map(PathBuf::from).into();
        let paths = with_homes(Path::new(volume), &homes).unwrap();
        paths.into_iter().filter(|path| path.is_watched).map(|path| path.path.display().to_string()).collect()
    }

    #[test]
    fn homes_are_recognized_above_at_and_below_a_volume() {
        let has = |volume: &str, name: &str| watched(volume).iter().any(|path| path == name);
        assert!(has("/srv/project", ".envrc") && !has("/srv/project", ".bashrc") && !has("/srv/project", "bin"));
        assert!(has("/home/a", ".bashrc") && has("/home/a", "bin") && has("/home/a", ".config/systemd"));
        assert!(has("/home", "a/.bashrc") && has("/home", "b/.ssh") && has("/home", "b/.mcp.json"));
        assert!(has("/home/a/.config", "systemd") && has("/home/a/.local", "share/dbus-1"));
        assert!(!has("/home/a/.ssh", "config") && !has("/home/a/project", "systemd"));
    }

    #[test]
    fn volume_with_too_many_homes_is_refused() {
        let homes = (0..=MAX_HOMES).map(|number| PathBuf::from(format!("/home/{number}"))).collect();
        assert_eq!(with_homes(Path::new("/home"), &homes), Err(Errno::TOOBIG));
    }
}
