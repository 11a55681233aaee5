//! What a session uses is told beside what it may use, whoever runs the server.

use ringfence_testkit::{Server, for_each_user, skip};
use serde_json::{Value, json};

/// Works for a quarter of a second, then leaves three processes and 10 MiB behind.
const WORK: &str = "python3 -c 'import time\nwhile time.process_time() < 0.25: pass'
head -c 10M /dev/zero > filler
for _ in 1 2 3; do sleep 60 >/dev/null 2>&1 & done";

#[test]
fn what_a_session_uses_is_told() {
    for_each_user("what_a_session_uses_is_told", |who| {
        let server = Server::start_as(who, &[], &[]);
        let answer = server.call("execute_command", &json!({"command": "true"}));
        let id = answer["result"]["structuredContent"]["session_id"].clone();
        let seen = || {
            let answer = server.call("get_sessions", &json!({"session_id": id}));
            let session = answer["result"]["structuredContent"]["sessions"][0].clone();
            assert!(session.is_object(), "{who:?}: {answer}");
            session
        };
        let figure = |session: &Value, name: &str| {
            session["usage"][name].as_u64().unwrap_or_else(|| panic!("{who:?}: no {name} in {session}"))
        };
        let before = seen();
        let ran = server.call("execute_command", &json!({"command": WORK, "session_id": id}));
        assert_eq!(ran["result"]["structuredContent"]["exit_code"], 0, "{ran}");
        let after = seen();
        let grown = |name: &str| figure(&after, name) - figure(&before, name);
        assert_eq!((grown("processes"), grown("workspace_inodes")), (3, 1), "{who:?}: {before} {after}");
        assert_eq!(grown("workspace_bytes"), 10 << 20, "{who:?}: {after}");
        assert!(grown("cpu_ms") >= 240, "{who:?}: {before} {after}");
        for (used, limit) in [
            (figure(&after, "processes"), &after["limits"]["processes"]),
            (figure(&after, "workspace_bytes"), &after["limits"]["workspace_bytes"]),
            (figure(&after, "workspace_inodes"), &after["limits"]["workspace_inodes"]),
            (after["memory_bytes"].as_u64().unwrap_or_default(), &after["memory_limit_bytes"]),
        ] {
            assert!(0 < used && limit.as_u64().is_some_and(|limit| used < limit), "{who:?}: {after}");
        }
    });
}

/// Whoever is the first to need a page pays for it: were that the server, guests could use up its memory.
#[test]
fn what_is_written_from_outside_counts_as_the_sessions_memory() {
    let server = Server::start(&[], &[]);
    let answer = server.call("execute_command", &json!({"command": "true"}));
    let id = answer["result"]["structuredContent"]["session_id"].clone();
    let content = "x".repeat(12 << 20);
    for name in ["a", "b", "c"] {
        let written = server.call("write_file", &json!({"session_id": id, "path": name, "content": content}));
        assert_eq!(written["result"]["structuredContent"]["size"], 12 << 20);
    }
    let answer = server.call("get_sessions", &json!({"session_id": id}));
    let session = &answer["result"]["structuredContent"]["sessions"][0];
    if session["enforced_by"]["memory"] != "cgroup" {
        return skip("what_is_written_from_outside_counts_as_the_sessions_memory", "no cgroup counts memory here");
    }
    assert!(session["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 36 << 20), "{session}");
}
