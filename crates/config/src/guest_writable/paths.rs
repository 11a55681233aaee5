//! Resolves paths, also those that do not exist yet.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// Maximum number of links in one path, as in the kernel (`path_resolution(7)`).
const MAX_LINKS: usize = 40;

pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns the real path. Parts that do not exist are appended as they are.
pub(crate) fn real(path: &Path) -> PathBuf {
    let path = absolute(path);
    let existing = path.ancestors().find_map(|ancestor| Some((ancestor, ancestor.canonicalize().ok()?)));
    match existing {
        Some((ancestor, real)) => {
            let rest = path.strip_prefix(ancestor).unwrap_or(Path::new(""));
            if rest.as_os_str().is_empty() { real } else { real.join(rest) }
        }
        None => path,
    }
}

/// Returns every path that is looked up while a path is resolved, each in its real directory. The last one is the target.
pub(super) fn visited(path: &Path) -> Vec<PathBuf> {
    let components = |path: &Path| path.components().rev().map(to_os_string).collect::<Vec<OsString>>();
    let mut pending = components(&absolute(path));
    let (mut current, mut steps, mut links) = (PathBuf::from("/"), Vec::new(), 0);
    while let Some(name) = pending.pop() {
        match Path::new(&name).components().next() {
            Some(Component::RootDir) => current = PathBuf::from("/"),
            Some(Component::ParentDir) => drop(current.pop()),
            Some(Component::Normal(name)) => {
                let next = current.join(name);
                steps.push(next.clone());
                match std::fs::read_link(&next) {
                    Ok(target) if links < MAX_LINKS => {
                        links += 1;
                        pending.extend(components(&target));
                    }
                    _ => current = next,
                }
            }
            Some(Component::CurDir | Component::Prefix(_)) | None => {}
        }
    }
    steps.push(current);
    steps
}

fn to_os_string(component: Component<'_>) -> OsString {
    component.as_os_str().to_owned()
}
