//! Paths in an entry that are meant from where its file lies.

use std::path::Path;

use serde_json::Value;

/// Makes the relative ones absolute: where a process happens to run means nothing to an entry.
pub fn anchor_paths(entry: &mut Value, base: &Path) {
    let Ok(base) = std::path::absolute(base) else { return };
    for pointer in ["/cwd", "/box/host_path", "/box/image"] {
        let Some(Value::String(path)) = entry.pointer_mut(pointer) else { continue };
        let is_relative = !path.is_empty() && !path.starts_with(['/', '~', '$']);
        if is_relative {
            let plain = Path::new(path.as_str()).components().filter(|part| part.as_os_str() != ".");
            *path = plain.fold(base.clone(), |path, part| path.join(part)).to_string_lossy().into_owned();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_relative_paths_are_moved() {
        let mut entry = json!({"cwd": "./a/b", "box": {"host_path": "~/p", "image": "/i"}, "command": "x"});
        anchor_paths(&mut entry, Path::new("/base/."));
        assert_eq!(entry, json!({"cwd": "/base/a/b", "box": {"host_path": "~/p", "image": "/i"}, "command": "x"}));
        let mut entry = json!({"cwd": "${HOME}/x", "box": {"host_path": ".", "image": 5}});
        anchor_paths(&mut entry, Path::new("/base"));
        assert_eq!(entry, json!({"cwd": "${HOME}/x", "box": {"host_path": "/base", "image": 5}}));
    }
}
