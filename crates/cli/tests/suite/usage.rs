//! Resource usage of sessions, reported next to their limits, for each user that may run the server.

use ringfence_testkit::{Server, for_each_user, skip};
use serde_json::{Value, json};

/// Uses a quarter of a second of CPU time, then leaves three processes and a file of 10 MiB.
const WORK: &str = "python3 -c 'import time\nwhile time.process_time() < 0.25: pass'
head -c 10M /dev/zero > filler
for _ in 1 2 3; do sleep 60 >/dev/null 2>&1 & done";

#[test]
fn session_usage_is_reported() {
    for_each_user("session_usage_is_reported", |user| {
        let server = Server::start_as(user, &[], &[]);
        let response = server.call("execute_command", &json!({"command": "true"}));
        let id = response["result"]["structuredContent"]["session_id"].clone();
        let session_info = || {
            let response = server.call("get_sessions", &json!({"session_id": id}));
            let session = response["result"]["structuredContent"]["sessions"][0].clone();
            assert!(session.is_object(), "{user:?}: {response}");
            session
        };
        let figure = |session: &Value, name: &str| {
            session["usage"][name].as_u64().unwrap_or_else(|| panic!("{user:?}: no {name} in {session}"))
        };
        let before = session_info();
        let ran = server.call("execute_command", &json!({"command": WORK, "session_id": id}));
        assert_eq!(ran["result"]["structuredContent"]["exit_code"], 0, "{ran}");
        let after = session_info();
        let grown = |name: &str| figure(&after, name) - figure(&before, name);
        assert_eq!((grown("processes"), grown("workspace_inodes")), (3, 1), "{user:?}: {before} {after}");
        assert_eq!(grown("workspace_bytes"), 10 << 20, "{user:?}: {after}");
        assert!(grown("cpu_ms") >= 240, "{user:?}: {before} {after}");
        for (used, limit) in [
            (figure(&after, "processes"), &after["limits"]["processes"]),
            (figure(&after, "workspace_bytes"), &after["limits"]["workspace_bytes"]),
            (figure(&after, "workspace_inodes"), &after["limits"]["workspace_inodes"]),
            (after["memory_bytes"].as_u64().unwrap_or_default(), &after["memory_limit_bytes"]),
        ] {
            assert!(0 < used && limit.as_u64().is_some_and(|limit| used < limit), "{user:?}: {after}");
        }
    });
}

/// The kernel charges a page to the cgroup that touches it first. If that were the server's, guests could exhaust its
/// memory.
#[test]
fn files_written_by_the_server_count_as_session_memory() {
    let server = Server::start(&[], &[]);
    let response = server.call("execute_command", &json!({"command": "true"}));
    let id = response["result"]["structuredContent"]["session_id"].clone();
    let content = "x".repeat(12 << 20);
    for name in ["a", "b", "c"] {
        let written = server.call("write_file", &json!({"session_id": id, "path": name, "content": content}));
        assert_eq!(written["result"]["structuredContent"]["size"], 12 << 20);
    }
    let response = server.call("get_sessions", &json!({"session_id": id}));
    let session = &response["result"]["structuredContent"]["sessions"][0];
    if session["enforced_by"]["memory"] != "cgroup" {
        return skip("files_written_by_the_server_count_as_session_memory", "no cgroup counts memory on this host");
    }
    assert!(session["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 36 << 20), "{session}");
}
