//! Entries as JSON again, in the shape in which they are read: what is the default is left out.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{BoxSettings, HostPathMode, Reach, RemoteSettings, ServerEntry, StdioSettings};

/// What stands for a value that nobody shall see.
const SET: &str = "(set)";

/// The entry without its name and uuid.
pub fn entry_to_json(entry: &ServerEntry) -> Value {
    let mut map = Map::new();
    map.insert("mode".into(), entry.reach.mode().into());
    if !entry.enable {
        map.insert("enable".into(), false.into());
    }
    if let Some(description) = &entry.description {
        map.insert("description".into(), description.as_str().into());
    }
    match &entry.reach {
        Reach::Stdio(settings) => stdio(settings, &mut map),
        Reach::Http(settings) | Reach::Sse(settings) | Reach::Websocket(settings) | Reach::Remote(settings) => {
            remote(settings, &mut map);
        }
    }
    Value::Object(map)
}

/// The same for people's eyes: values of variables and headers, which may be secrets, are not in it, unless they only
/// say where a value comes from. So it is with what a URL has before its host and after its path.
pub fn entry_to_shown_json(entry: &ServerEntry) -> Value {
    let mut value = entry_to_json(entry);
    for table in ["/env", "/headers", "/box/env"] {
        if let Some(Value::Object(map)) = value.pointer_mut(table) {
            map.values_mut().for_each(|value| *value = veil(value.as_str().unwrap_or_default()).into());
        }
    }
    if let Some(Value::String(url)) = value.pointer_mut("/url") {
        *url = veil_url(url);
    }
    value
}

/// The value of a variable or header for people's eyes.
pub fn veil(text: &str) -> &str {
    let inner = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    let is_reference = inner.is_some_and(|inner| !inner.contains(['$', '}']) && !inner.contains(":-"));
    if text.is_empty() || is_reference { text } else { SET }
}

/// A URL for people's eyes.
pub fn veil_url(url: &str) -> String {
    let (before, query) = match url.split_once('?') {
        Some((before, _)) => (before, format!("?{SET}")),
        None => (url, String::new()),
    };
    let before = match before.split_once("://") {
        Some((scheme, rest)) => {
            let authority = rest.find('/').unwrap_or(rest.len());
            match rest[..authority].rfind('@') {
                Some(at) => format!("{scheme}://{SET}{}", &rest[at..]),
                None => before.to_owned(),
            }
        }
        None => before.to_owned(),
    };
    before + &query
}

fn stdio(settings: &StdioSettings, map: &mut Map<String, Value>) {
    map.insert("command".into(), settings.command.as_str().into());
    if !settings.args.is_empty() {
        map.insert("args".into(), settings.args.clone().into());
    }
    insert_table(map, "env", &settings.env);
    if let Some(cwd) = &settings.cwd {
        map.insert("cwd".into(), cwd.to_string_lossy().into());
    }
    if !settings.sandbox {
        map.insert("sandbox".into(), false.into());
    }
    let walls = walls(&settings.sandbox_settings);
    if !walls.is_empty() {
        map.insert("box".into(), walls.into());
    }
}

fn walls(settings: &BoxSettings) -> Map<String, Value> {
    let usual = BoxSettings::default();
    let mut map = Map::new();
    let paths = [("image", &settings.image), ("host_path", &settings.host_path)];
    for (key, path) in paths.into_iter().filter_map(|(key, path)| Some((key, path.as_ref()?))) {
        map.insert(key.into(), path.to_string_lossy().into());
    }
    if settings.host_path_mode == HostPathMode::ReadWrite {
        map.insert("host_path_mode".into(), "rw".into());
    }
    if settings.network != usual.network {
        map.insert("network".into(), "off".into());
    }
    if !settings.allow.is_empty() {
        map.insert("allow".into(), settings.allow.clone().into());
    }
    insert_table(&mut map, "env", &settings.env);
    if settings.startup_timeout != usual.startup_timeout {
        map.insert("startup_timeout_sec".into(), settings.startup_timeout.as_secs().into());
    }
    let optional = [
        ("cpus", settings.cpus.map(|cpus| json!(cpus))),
        ("memory_mb", settings.memory_mb.map(Value::from)),
        ("pids_limit", settings.pids_limit.map(Value::from)),
        ("read_only_rootfs", (settings.read_only_rootfs != usual.read_only_rootfs).then_some(false.into())),
        ("shared", settings.shared.then_some(true.into())),
    ];
    map.extend(optional.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    map
}

fn remote(settings: &RemoteSettings, map: &mut Map<String, Value>) {
    let usual = RemoteSettings::new("");
    map.insert("url".into(), settings.url.as_str().into());
    insert_table(map, "headers", &settings.headers);
    let times = [
        ("timeout", settings.timeout, usual.timeout),
        ("sse_read_timeout", settings.sse_read_timeout, usual.sse_read_timeout),
    ];
    for (key, time, _) in times.into_iter().filter(|(_, time, usual)| time != usual) {
        map.insert(key.into(), seconds(time));
    }
}

fn insert_table(map: &mut Map<String, Value>, key: &str, table: &BTreeMap<String, String>) {
    if !table.is_empty() {
        map.insert(key.into(), json!(table));
    }
}

fn seconds(time: Duration) -> Value {
    if time.subsec_nanos() == 0 { time.as_secs().into() } else { json!(time.as_secs_f64()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry_from_json;

    #[test]
    fn what_is_shown_has_no_secret_in_it() {
        let entry = json!({
            "command": "x", "env": {"A": "s3cret", "B": "${B}", "C": "${env:C}", "D": "${D:-s3cret}", "E": "${E}s3cret"},
            "box": {"env": {"F": "s3cret"}},
        });
        let shown = entry_to_shown_json(&entry_from_json("x", &entry).unwrap().0);
        assert!(!shown.to_string().contains("s3cret"), "{shown}");
        assert_eq!(shown["env"], json!({"A": "(set)", "B": "${B}", "C": "${env:C}", "D": "(set)", "E": "(set)"}));
        let entry =
            json!({"url": "https://u:s3cret@h:1/p/@x?key=s3cret", "headers": {"Authorization": "Bearer s3cret"}});
        let shown = entry_to_shown_json(&entry_from_json("x", &entry).unwrap().0);
        assert!(!shown.to_string().contains("s3cret"), "{shown}");
        assert_eq!(shown["url"], "https://(set)@h:1/p/@x?(set)");
    }
}
