//! Relative paths in an entry, resolved against the directory of the file that contains it.

use std::path::Path;

use serde_json::Value;

/// Makes the relative paths of an entry absolute, because an entry must not depend on the working directory.
///
/// Paths that begin with `~` or `$` are left to [`expand`](crate::expand()).
pub fn resolve_relative_paths(entry: &mut Value, base: &Path) {
    let Ok(base) = std::path::absolute(base) else { return };
    for pointer in ["/cwd", "/box/host_path", "/box/image"] {
        let Some(Value::String(path)) = entry.pointer_mut(pointer) else { continue };
        let is_relative = !path.is_empty() && !path.starts_with(['/', '~', '$']);
        if is_relative {
            let parts = Path::new(path.as_str()).components().filter(|part| part.as_os_str() != ".");
            *path = parts.fold(base.clone(), |path, part| path.join(part)).to_string_lossy().into_owned();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_relative_paths_are_changed() {
        let mut entry = json!({"cwd": "./a/b", "box": {"host_path": "~/p", "image": "/i"}, "command": "x"});
        resolve_relative_paths(&mut entry, Path::new("/base/."));
        assert_eq!(entry, json!({"cwd": "/base/a/b", "box": {"host_path": "~/p", "image": "/i"}, "command": "x"}));
        let mut entry = json!({"cwd": "${HOME}/x", "box": {"host_path": ".", "image": 5}});
        resolve_relative_paths(&mut entry, Path::new("/base"));
        assert_eq!(entry, json!({"cwd": "${HOME}/x", "box": {"host_path": "/base", "image": 5}}));
    }
}
