//! Serializes an entry to the JSON form that the parser reads. Keys with default values are omitted.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::{HostPathMode, RemoteSettings, SandboxSettings, ServerEntry, StdioSettings, Transport};

/// Serializes an entry without its name and uuid.
pub fn entry_to_json(entry: &ServerEntry) -> Value {
    let mut map = Map::new();
    map.insert("mode".into(), entry.transport.mode().into());
    if !entry.enable {
        map.insert("enable".into(), false.into());
    }
    if let Some(description) = &entry.description {
        map.insert("description".into(), description.as_str().into());
    }
    match &entry.transport {
        Transport::Stdio(settings) => insert_stdio(settings, &mut map),
        Transport::Http(settings)
        | Transport::Sse(settings)
        | Transport::Websocket(settings)
        | Transport::Remote(settings) => {
            insert_remote(settings, &mut map);
        }
    }
    Value::Object(map)
}

fn insert_stdio(settings: &StdioSettings, map: &mut Map<String, Value>) {
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
    let sandbox_settings = sandbox_settings(&settings.sandbox_settings);
    if !sandbox_settings.is_empty() {
        map.insert("box".into(), sandbox_settings.into());
    }
}

fn sandbox_settings(settings: &SandboxSettings) -> Map<String, Value> {
    let defaults = SandboxSettings::default();
    let mut map = Map::new();
    let paths = [("image", &settings.image), ("host_path", &settings.host_path)];
    for (key, path) in paths.into_iter().filter_map(|(key, path)| Some((key, path.as_ref()?))) {
        map.insert(key.into(), path.to_string_lossy().into());
    }
    if settings.host_path_mode == HostPathMode::ReadWrite {
        map.insert("host_path_mode".into(), "rw".into());
    }
    if settings.network != defaults.network {
        map.insert("network".into(), "off".into());
    }
    if !settings.allow.is_empty() {
        map.insert("allow".into(), settings.allow.clone().into());
    }
    if !settings.secrets.is_empty() {
        map.insert("secrets".into(), settings.secrets.clone().into());
    }
    insert_table(&mut map, "env", &settings.env);
    if settings.startup_timeout != defaults.startup_timeout {
        map.insert("startup_timeout_sec".into(), settings.startup_timeout.as_secs().into());
    }
    let optional = [
        ("cpus", settings.cpus.map(|cpus| json!(cpus))),
        ("memory_mb", settings.memory_mb.map(Value::from)),
        ("pids_limit", settings.pids_limit.map(Value::from)),
        ("read_only_rootfs", (settings.read_only_rootfs != defaults.read_only_rootfs).then_some(false.into())),
        ("shared", settings.shared.then_some(true.into())),
    ];
    map.extend(optional.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    map
}

fn insert_remote(settings: &RemoteSettings, map: &mut Map<String, Value>) {
    let defaults = RemoteSettings::new("");
    map.insert("url".into(), settings.url.as_str().into());
    insert_table(map, "headers", &settings.headers);
    let timeouts = [
        ("timeout", settings.timeout, defaults.timeout),
        ("sse_read_timeout", settings.sse_read_timeout, defaults.sse_read_timeout),
    ];
    for (key, timeout, _) in timeouts.into_iter().filter(|(_, timeout, default)| timeout != default) {
        map.insert(key.into(), seconds(timeout));
    }
}

fn insert_table(map: &mut Map<String, Value>, key: &str, table: &BTreeMap<String, String>) {
    if !table.is_empty() {
        map.insert(key.into(), json!(table));
    }
}

fn seconds(duration: Duration) -> Value {
    if duration.subsec_nanos() == 0 { duration.as_secs().into() } else { json!(duration.as_secs_f64()) }
}
