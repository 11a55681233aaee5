//! Edits of an entry: a JSON merge patch (RFC 7396) on its JSON form.

use serde_json::Value;

use crate::{EntryError, ServerEntry, Warning, entry_from_json, entry_to_json};

/// Applies a JSON merge patch: null removes a key, objects are merged. Name and uuid do not change.
///
/// A new `command` replaces a `url` with all its settings, and the reverse. Otherwise every switch between local and
/// remote would need a null for each key of the former mode.
pub fn apply_merge_patch(entry: &ServerEntry, changes: &Value) -> Result<(ServerEntry, Vec<Warning>), EntryError> {
    let mut value = entry_to_json(entry);
    if let (Value::Object(base), Value::Object(changes)) = (&mut value, changes) {
        let has = |keys: &[&str]| keys.iter().any(|key| changes.get(*key).is_some_and(|value| !value.is_null()));
        // The stored form has one spelling of each key; another spelling in the patch must replace it.
        if has(&["enable", "enabled", "disabled"]) {
            base.shift_remove("enable");
        }
        let (has_command, has_url) = (has(&["command"]), has(&["url", "serverUrl", "httpUrl"]));
        if has_command != has_url {
            let replaced: &[&str] = if has_command {
                &["mode", "url", "headers", "timeout", "sse_read_timeout"]
            } else if base.contains_key("command") {
                &["mode", "command", "args", "env", "cwd", "sandbox", "box"]
            } else {
                &["url"]
            };
            for key in replaced {
                base.shift_remove(*key);
            }
        }
        if has(&["mode", "type", "transport", "transportType"]) {
            base.shift_remove("mode");
        }
    }
    merge(&mut value, changes);
    let (patched, warnings) = entry_from_json(&entry.name, &value)?;
    Ok((ServerEntry { uuid: entry.uuid.clone(), ..patched }, warnings))
}

fn merge(target: &mut Value, changes: &Value) {
    let Value::Object(changes) = changes else {
        *target = changes.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, change) in changes {
        if change.is_null() {
            target.shift_remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), change);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(entry: &Value, changes: &Value) -> Value {
        let entry = ServerEntry { uuid: "unchanged".into(), ..entry_from_json("x", entry).unwrap().0 };
        let (patched, warnings) = apply_merge_patch(&entry, changes).unwrap();
        assert_eq!((patched.uuid.as_str(), warnings.as_slice()), ("unchanged", [].as_slice()));
        entry_to_json(&patched)
    }

    #[test]
    fn given_keys_change_and_others_do_not() {
        let entry = json!({"command": "x", "args": ["a"], "env": {"A": "1", "B": "2"}, "enable": false, "box": {"memory_mb": 64}});
        let changes = json!({"args": ["b"], "env": {"A": null, "C": "3"}, "disabled": false, "box": {"cpus": 2.0}});
        let expected = json!({
            "mode": "stdio", "command": "x", "args": ["b"], "env": {"B": "2", "C": "3"}, "box": {"cpus": 2.0, "memory_mb": 64},
        });
        assert_eq!(patched(&entry, &changes), expected);
        assert_eq!(patched(&json!({"command": "x"}), &json!({})), json!({"mode": "stdio", "command": "x"}));
    }

    #[test]
    fn command_and_url_replace_each_other() {
        let local = json!({"command": "x", "env": {"A": "1"}, "description": "d"});
        let remote = patched(&local, &json!({"url": "https://h", "headers": {"A": "b"}}));
        assert_eq!(remote, json!({"mode": "remote", "description": "d", "url": "https://h", "headers": {"A": "b"}}));
        assert_eq!(patched(&remote, &json!({"serverUrl": "https://i", "type": "sse"}))["url"], "https://i");
        assert_eq!(
            patched(&remote, &json!({"command": "y"})),
            json!({"mode": "stdio", "description": "d", "command": "y"})
        );
    }

    #[test]
    fn invalid_changes_are_errors() {
        let entry = entry_from_json("x", &json!({"command": "x"})).unwrap().0;
        for changes in [json!({"command": null}), json!({"mode": "sse"}), json!({"box": {"cpus": -1}}), json!("x")] {
            assert!(apply_merge_patch(&entry, &changes).is_err(), "{changes}");
        }
    }
}
