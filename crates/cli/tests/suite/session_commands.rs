//! `ringfence session`, as whoever runs the servers uses it.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;

use ringfence_testkit::{Server, User, for_each_user, skip};
use serde_json::{Value, json};
use tempfile::TempDir;

fn session(who: User, state: &TempDir, arguments: &[&str]) -> Output {
    let mut command = who.ringfence();
    command.arg("session").args(arguments).env("RINGFENCE_STATE_DIR", state.path()).output().expect("it runs")
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn listed(who: User, state: &TempDir) -> Vec<Value> {
    serde_json::from_str(&text(&session(who, state, &["list", "--json"]))).expect("JSON")
}

fn start_session(server: &Server, token: &str) -> String {
    let headers =
        format!("Host: {}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n", server.address);
    let (status, body) = server.http("POST /v1/sessions", &headers, "{}");
    assert_eq!(status, 201, "{body}");
    let made: Value = serde_json::from_str(&body).expect("JSON");
    made["session_id"].as_str().expect("an id").to_owned()
}

fn socket_of(server: &Server) -> PathBuf {
    server.state.path().join(format!("servers/{}.sock", server.process.id()))
}

#[test]
fn an_operator_sees_uses_and_ends_the_sessions_of_all() {
    for_each_user("an_operator_sees_uses_and_ends_the_sessions_of_all", |who| {
        let state = Arc::new(who.directory());
        let empty = session(who, &state, &["list"]);
        assert_eq!((text(&empty).as_str(), empty.stderr.as_slice()), ("", b"no sessions\n".as_slice()));
        let one = Server::start_in(who, Arc::clone(&state), &[], &[("RINGFENCE_AUTH_TOKEN", "a-long-secret")]);
        let mut other = Server::start_in(who, Arc::clone(&state), &[], &[]);
        let id = start_session(&one, "a-long-secret");
        start_session(&other, "");
        let found = listed(who, &state);
        let mut seen: Vec<_> =
            found.iter().map(|session| (session["principal"].as_str(), session["server"].as_u64())).collect();
        seen.sort_unstable();
        let servers =
            [("local", &other), ("token", &one)].map(|(name, server)| (Some(name), Some(server.process.id().into())));
        assert_eq!(seen, servers, "{who:?}");

        let ran = session(who, &state, &["exec", &id, "--", "echo out; echo err >&2; exit 7"]);
        assert_eq!(
            (ran.status.code(), ran.stdout.as_slice(), ran.stderr.as_slice()),
            (Some(7), b"out\n".as_slice(), b"err\n".as_slice())
        );
        assert_eq!(text(&session(who, &state, &["exec", &id, "--", "printf", "%s|", "a b", "$HOME"])), "a b|$HOME|");
        assert_eq!(text(&session(who, &state, &["exec", &id, "--code", "6 * 7"])), "42\n");
        let bytes = session(who, &state, &["exec", &id, "--", r"printf '\377\0\376'"]);
        assert_eq!(bytes.stdout, b"\xff\0\xfe", "what is no text is passed on as it is");
        let raised = session(who, &state, &["exec", &id[..20], "--code", "1 / 0"]);
        assert_eq!(raised.status.code(), Some(1), "an id may be shortened: {raised:?}");
        let late = session(who, &state, &["exec", &id, "--timeout", "0.5", "--", "sleep 100"]);
        assert_eq!(late.status.code(), Some(124));

        let calls: Value = serde_json::from_str(&text(&session(who, &state, &["logs", &id, "--json"]))).expect("JSON");
        let calls: Vec<_> = calls
            .as_array()
            .expect("a list")
            .iter()
            .map(|call| (&call["kind"], &call["status"], &call["exit_code"]))
            .collect();
        assert_eq!(calls.len(), 6);
        assert_eq!(calls[0], (&json!("command"), &json!("error"), &json!(7)));
        assert_eq!(calls[4], (&json!("code"), &json!("error"), &Value::Null));
        assert!(text(&session(who, &state, &["logs", &id])).contains("sleep 100"));
        assert!(text(&session(who, &state, &["show", &id])).contains("enforced_by.memory"));

        assert_eq!(text(&session(who, &state, &["stop", &id])), format!("stopped {id}\n"));
        let refused = session(who, &state, &["show", &id]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(125));
        assert!(said.contains(&format!("error: session not found: {id}\n")) && said.contains("hint: "), "{said}");

        // One that is killed leaves its socket to the next who looks; one that ends removes it.
        let (killed, ended) = (socket_of(&other), socket_of(&one));
        other.process.kill().expect("it lives");
        drop(other);
        assert!(killed.exists() && ended.exists());
        assert!(listed(who, &state).is_empty());
        assert!(!killed.exists(), "{who:?}");
        drop(one);
        assert!(!ended.exists(), "{who:?}");
    });
}

/// Even where the directory were open, the kernel says who connects.
#[test]
fn only_the_owner_and_root_are_heard() {
    const ASK: &str = "
import socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
try:
    s.sendall(b'GET /v1/sessions HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n')
    print(s.recv(12).decode())
except (BrokenPipeError, ConnectionResetError):
    print('')
";
    let test = "only_the_owner_and_root_are_heard";
    if let Some(reason) = [User::Plain, User::WithSubids].into_iter().find_map(User::unavailable) {
        return skip(test, &reason);
    }
    let server = Server::start_as(User::Plain, &[], &[]);
    let socket = socket_of(&server);
    let mode = |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(socket.parent().expect("a directory")), 0o700);
    for path in [server.state.path(), &server.state.path().join("servers"), &socket] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("it is opened to all");
    }
    for (who, expected) in [(User::Plain, "HTTP/1.1 200\n"), (User::Root, "HTTP/1.1 200\n"), (User::WithSubids, "\n")] {
        let asked =
            who.program(Path::new("/usr/bin/python3")).args(["-c", ASK]).arg(&socket).output().expect("it runs");
        assert_eq!(String::from_utf8_lossy(&asked.stdout), expected, "{who:?}: {asked:?}");
    }
}

#[test]
fn all_of_a_long_output_is_passed_on() {
    let server = Server::start(&[], &[]);
    let id = start_session(&server, "");
    let line = "head -c 700000 /dev/zero; seq 50000 >&2; printf 'end\\377'";
    let ran = session(User::Root, &server.state, &["exec", &id, "--", line]);
    assert!(ran.status.success());
    assert!(ran.stdout.len() == 700_004 && ran.stdout.ends_with(b"end\xff"), "{} bytes", ran.stdout.len());
    let lines = String::from_utf8_lossy(&ran.stderr);
    assert!(lines.lines().map(str::parse).eq((1..=50_000).map(Ok::<u32, _>)), "{} bytes", ran.stderr.len());
    let ended = session(User::Root, &server.state, &["exec", "--timeout", "1", &id, "--", "sleep 20"]);
    assert_eq!(ended.status.code(), Some(124));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("the command was stopped after its timeout"), "{ended:?}");
}
