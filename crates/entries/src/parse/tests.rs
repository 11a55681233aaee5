//! Entries as clients write them, and what is said of bad ones.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::entry_to_json;

fn parsed(entry: &Value) -> (ServerEntry, Vec<String>) {
    let (entry, warnings) = entry_from_json("x", entry).unwrap();
    (entry, warnings.iter().map(ToString::to_string).collect())
}

/// What an entry comes to, and its warnings.
fn read(entry: &Value) -> String {
    let (entry, warnings) = parsed(entry);
    let warnings = warnings.iter().fold(String::new(), |text, warning| text + "\n  warning: " + warning);
    format!("{}{warnings}", entry_to_json(&entry))
}

#[test]
fn the_spellings_of_clients_mean_the_same() {
    let stdio = json!({"mode": "stdio", "command": "npx", "args": ["-y", "pkg"], "env": {"A": "1"}});
    for spelled in [
        json!({"command": "npx", "args": ["-y", "pkg"], "env": {"A": "1"}}),
        json!({"type": "stdio", "command": "npx", "args": ["-y", "pkg"], "env": {"A": 1}, "disabled": false}),
        json!({"type": "local", "command": ["npx", "-y", "pkg"], "environment": {"A": "1"}, "enabled": true}),
        json!({"transport": "STDIO", "command": ["npx", "-y"], "args": ["pkg"], "envs": {"A": "1"}, "url": null}),
        json!({"transportType": "stdio", "name": "x", "uuid": "y", "command": "npx", "args": ["-y", "pkg"],
               "env": {"A": "1"}, "sandbox": true, "box": {}}),
    ] {
        assert_eq!(read(&spelled), stdio.to_string(), "{spelled}");
    }
    let modes = ["http", "streamable-http", "streamableHttp", "streamable_http", "sse", "websocket", "ws", "remote"];
    let read = modes.map(|mode| {
        let scheme = if mode.starts_with('w') { "wss" } else { "https" };
        let entry = json!({"type": mode, "url": format!("{scheme}://h/mcp")});
        parsed(&entry).0.reach.mode()
    });
    assert_eq!(read, ["http", "http", "http", "http", "sse", "websocket", "websocket", "remote"]);
    for (key, mode) in [("url", "remote"), ("serverUrl", "remote"), ("httpUrl", "remote")] {
        assert_eq!(parsed(&json!({key: "http://[::1]:8080"})).0.reach.mode(), mode);
    }
    assert_eq!(parsed(&json!({"url": "ws://h"})).0.reach.mode(), "websocket", "nothing else could reach it");
}

#[test]
fn off_is_off_however_it_is_said() {
    for off in [
        json!({"command": "x", "enable": false}),
        json!({"command": "x", "enabled": false}),
        json!({"command": "x", "disabled": true}),
        json!({"command": "x", "disabled": true, "enabled": true}),
    ] {
        assert!(!parsed(&off).0.enable, "{off}");
    }
    assert!(parsed(&json!({"command": "x", "disabled": null})).0.enable);
}

#[test]
fn defaults_are_those_of_the_specification() {
    let Reach::Stdio(stdio) = parsed(&json!({"command": "x"})).0.reach else { panic!("a command") };
    assert!(stdio.sandbox && stdio.sandbox_settings == BoxSettings::default());
    assert!(stdio.sandbox_settings.network && stdio.sandbox_settings.allow.is_empty());
    assert_eq!(stdio.sandbox_settings.startup_timeout.as_secs(), 120);
    let Reach::Remote(remote) = parsed(&json!({"url": "https://h"})).0.reach else { panic!("a url") };
    assert_eq!((remote.timeout.as_secs(), remote.sse_read_timeout.as_secs()), (10, 30));
}

#[test]
fn a_box_is_read_and_written() {
    let entry = json!({"mode": "stdio", "command": "x", "sandbox": false, "box": {
        "image": "/roots/x", "host_path": "~/p", "host_path_mode": "rw", "network": "off",
        "allow": ["api.example.com", "*.example.org:8443+private"], "env": {"A": "b"}, "startup_timeout_sec": 5,
        "cpus": 0.5, "memory_mb": 512, "pids_limit": 64, "read_only_rootfs": false, "shared": true,
    }});
    assert_eq!(read(&entry), entry.to_string());
}

#[test]
fn what_nobody_knows_is_ignored_with_a_warning() {
    let entries = [
        json!({"command": "x", "alwaysAllow": ["a"], "arg": ["y"]}),
        json!({"command": "x", "box": {"memory": "1G", "colour": 1}}),
        json!({"command": "x", "env": {"A": null}}),
        json!({"command": "npx -y pkg"}),
        json!({"command": "x", "disabled": true, "enabled": true}),
        json!({"url": "https://a", "httpUrl": "https://b"}),
        json!({"type": "stdio", "command": "x", "url": "https://a"}),
        json!({"url": "https://a", "box": {}}),
    ];
    insta::assert_snapshot!(entries.map(|entry| read(&entry)).join("\n"));
}

#[test]
fn bad_entries_say_what_and_why_and_what_to_do() {
    let entries = [
        json!("npx"),
        json!({}),
        json!({"command": "x", "url": "https://h"}),
        json!({"command": ""}),
        json!({"command": []}),
        json!({"command": 5}),
        json!({"command": "x\u{0}"}),
        json!({"command": "x", "args": "-y"}),
        json!({"command": "x", "args": [["y"]]}),
        json!({"command": "x", "env": ["A=1"]}),
        json!({"command": "x", "env": {"A=": "1"}}),
        json!({"command": "x", "env": {"A": {}}}),
        json!({"command": "x", "cwd": "here"}),
        json!({"command": "x", "enable": "yes"}),
        json!({"command": "x", "sandbox": "false"}),
        json!({"type": "carrier-pigeon", "command": "x"}),
        json!({"type": "stdio", "url": "https://h"}),
        json!({"type": "sse", "command": "x"}),
        json!({"url": "h/mcp"}),
        json!({"url": "file:///etc/passwd"}),
        json!({"url": "https://"}),
        json!({"url": "https://u@:80/"}),
        json!({"url": "https://h/a b"}),
        json!({"type": "websocket", "url": "https://h"}),
        json!({"type": "http", "url": "ws://h"}),
        json!({"url": "https://h", "headers": {"A b": "c"}}),
        json!({"url": "https://h", "headers": {"A": "b\r\nC: d"}}),
        json!({"url": "https://h", "timeout": 0}),
        json!({"url": "https://h", "timeout": "10"}),
        json!({"command": "x", "box": 1}),
        json!({"command": "x", "box": {"network": "yes"}}),
        json!({"command": "x", "box": {"allow": ["https://h"]}}),
        json!({"command": "x", "box": {"allow": "h"}}),
        json!({"command": "x", "box": {"host_path": "p"}}),
        json!({"command": "x", "box": {"host_path_mode": "write"}}),
        json!({"command": "x", "box": {"memory_mb": 1}}),
        json!({"command": "x", "box": {"memory_mb": 20.5}}),
        json!({"command": "x", "box": {"cpus": -1}}),
        json!({"command": "x", "box": {"pids_limit": "many"}}),
        json!({"command": "x", "box": {"startup_timeout_sec": 0}}),
    ];
    let said = entries.map(|entry| {
        let error = entry_from_json("x", &entry).expect_err(&entry.to_string());
        let hints = error.hints().iter().fold(String::new(), |text, hint| text + "\n  hint: " + hint);
        format!("{entry}\n  {error}{hints}")
    });
    insta::assert_snapshot!(said.join("\n"));
    let error = entry_from_json("a__b", &json!({"command": "x"})).unwrap_err();
    assert!(error.to_string().starts_with("`a__b` cannot be the name"), "{error}");
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        "[a-z$\\{\\}:/~.]{0,12}".prop_map(Value::from),
        "(on|off|ro|rw|stdio|sse|https?://h/x|ws://h)".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 5, |inner| {
        let key = "(command|args|env|url|headers|box|type|mode|enable|disabled|timeout|cwd|allow|network|host_path|\
                   memory_mb|cpus|sandbox|startup_timeout_sec|shared|[a-z]{1,5})";
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..8).prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn whatever_is_understood_is_read_the_same_when_written(value in any_value()) {
        if let Ok((entry, _)) = entry_from_json("x", &value) {
            let (again, warnings) = entry_from_json("x", &entry_to_json(&entry)).unwrap();
            prop_assert_eq!(&again, &entry);
            let about_spaces = |warning: &Warning| warning.0.contains("one name with spaces");
            prop_assert!(warnings.iter().all(about_spaces), "{:?}", warnings);
        }
    }
}
