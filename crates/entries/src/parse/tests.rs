//! Entries in the formats of clients, and the errors and warnings of bad ones.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::entry_to_json;

fn parsed(entry: &Value) -> (ServerEntry, Vec<String>) {
    let (entry, warnings) = entry_from_json("x", entry).unwrap();
    (entry, warnings.iter().map(ToString::to_string).collect())
}

/// Parses an entry, and returns its serialized form with the warnings.
fn parsed_with_warnings(entry: &Value) -> String {
    let (entry, warnings) = parsed(entry);
    let warnings = warnings.iter().fold(String::new(), |text, warning| text + "\n  warning: " + warning);
    format!("{}{warnings}", entry_to_json(&entry))
}

#[test]
fn spellings_of_all_clients_are_accepted() {
    let stdio = json!({"mode": "stdio", "command": "npx", "args": ["-y", "pkg"], "env": {"A": "1"}});
    for spelling in [
        json!({"command": "npx", "args": ["-y", "pkg"], "env": {"A": "1"}}),
        json!({"type": "stdio", "command": "npx", "args": ["-y", "pkg"], "env": {"A": 1}, "disabled": false}),
        json!({"type": "local", "command": ["npx", "-y", "pkg"], "environment": {"A": "1"}, "enabled": true}),
        json!({"transport": "STDIO", "command": ["npx", "-y"], "args": ["pkg"], "envs": {"A": "1"}, "url": null}),
        json!({"transportType": "stdio", "name": "x", "uuid": "y", "command": "npx", "args": ["-y", "pkg"],
               "env": {"A": "1"}, "sandbox": true, "box": {}}),
    ] {
        assert_eq!(parsed_with_warnings(&spelling), stdio.to_string(), "{spelling}");
    }
    let modes = ["http", "streamable-http", "streamableHttp", "streamable_http", "sse", "websocket", "ws", "remote"];
    let parsed_modes = modes.map(|mode| {
        let scheme = if mode.starts_with('w') { "wss" } else { "https" };
        let entry = json!({"type": mode, "url": format!("{scheme}://h/mcp")});
        parsed(&entry).0.transport.mode()
    });
    assert_eq!(parsed_modes, ["http", "http", "http", "http", "sse", "websocket", "websocket", "remote"]);
    for (key, mode) in [("url", "remote"), ("serverUrl", "remote"), ("httpUrl", "remote")] {
        assert_eq!(parsed(&json!({key: "http://[::1]:8080"})).0.transport.mode(), mode);
    }
    assert_eq!(parsed(&json!({"url": "ws://h"})).0.transport.mode(), "websocket", "no other mode supports ws");
}

#[test]
fn every_spelling_disables_a_server() {
    for disabled in [
        json!({"command": "x", "enable": false}),
        json!({"command": "x", "enabled": false}),
        json!({"command": "x", "disabled": true}),
        json!({"command": "x", "disabled": true, "enabled": true}),
    ] {
        assert!(!parsed(&disabled).0.enable, "{disabled}");
    }
    assert!(parsed(&json!({"command": "x", "disabled": null})).0.enable);
}

#[test]
fn missing_keys_have_defaults() {
    let Transport::Stdio(stdio) = parsed(&json!({"command": "x"})).0.transport else { panic!("a command") };
    assert!(stdio.sandbox && stdio.sandbox_settings == SandboxSettings::default());
    assert!(stdio.sandbox_settings.network && stdio.sandbox_settings.allow.is_empty());
    assert_eq!(stdio.sandbox_settings.startup_timeout.as_secs(), 120);
    let Transport::Remote(remote) = parsed(&json!({"url": "https://h"})).0.transport else { panic!("a url") };
    assert_eq!((remote.timeout.as_secs(), remote.sse_read_timeout.as_secs()), (10, 30));
}

#[test]
fn box_survives_a_round_trip() {
    let entry = json!({"mode": "stdio", "command": "x", "sandbox": false, "box": {
        "image": "/roots/x", "host_path": "~/p", "host_path_mode": "rw", "network": "off",
        "allow": ["api.example.com", "*.example.org:8443+private"], "secrets": ["github"], "env": {"A": "b"}, "startup_timeout_sec": 5,
        "cpus": 0.5, "memory_mb": 512, "pids_limit": 64, "read_only_rootfs": false, "shared": true,
    }});
    assert_eq!(parsed_with_warnings(&entry), entry.to_string());
}

#[test]
fn ignored_keys_have_warnings() {
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
    insta::assert_snapshot!(entries.map(|entry| parsed_with_warnings(&entry)).join("\n"));
}

#[test]
fn invalid_entries_have_errors_with_hints() {
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
    let errors = entries.map(|entry| {
        let error = entry_from_json("x", &entry).expect_err(&entry.to_string());
        let hints = error.hints().iter().fold(String::new(), |text, hint| text + "\n  hint: " + hint);
        format!("{entry}\n  {error}{hints}")
    });
    insta::assert_snapshot!(errors.join("\n"));
    let error = entry_from_json("a__b", &json!({"command": "x"})).unwrap_err();
    assert!(error.to_string().starts_with("invalid server name `a__b`"), "{error}");
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
    fn parsed_entry_survives_a_round_trip(value in any_value()) {
        if let Ok((entry, _)) = entry_from_json("x", &value) {
            let (again, warnings) = entry_from_json("x", &entry_to_json(&entry)).unwrap();
            prop_assert_eq!(&again, &entry);
            let is_about_spaces = |warning: &Warning| warning.0.contains("one program name with spaces");
            prop_assert!(warnings.iter().all(is_about_spaces), "{:?}", warnings);
        }
    }
}
