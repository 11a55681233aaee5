//! `ringfence session`, used by the operator of the servers.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;

use ringfence_testkit::{Server, User, for_each_user, skip};
use serde_json::{Value, json};
use tempfile::TempDir;

fn session(user: User, state: &TempDir, arguments: &[&str]) -> Output {
    let mut command = user.ringfence();
    command.arg("session").args(arguments).env("RINGFENCE_STATE_DIR", state.path()).output().expect("command runs")
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn listed(user: User, state: &TempDir) -> Vec<Value> {
    serde_json::from_str(&text(&session(user, state, &["list", "--json"]))).expect("valid JSON")
}

fn start_session(server: &Server, token: &str) -> String {
    let headers =
        format!("Host: {}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n", server.address);
    let (status, body) = server.http("POST /v1/sessions", &headers, "{}");
    assert_eq!(status, 201, "{body}");
    let response: Value = serde_json::from_str(&body).expect("valid JSON");
    response["session_id"].as_str().expect("an ID").to_owned()
}

fn socket_of(server: &Server) -> PathBuf {
    server.state.path().join(format!("servers/{}.sock", server.process.id()))
}

#[test]
fn operator_lists_uses_and_stops_sessions_of_all_principals() {
    for_each_user("operator_lists_uses_and_stops_sessions_of_all_principals", |user| {
        let state = Arc::new(user.directory());
        let empty = session(user, &state, &["list"]);
        assert_eq!((text(&empty).as_str(), empty.stderr.as_slice()), ("", b"no sessions\n".as_slice()));
        let one = Server::start_in(user, Arc::clone(&state), &[], &[("RINGFENCE_AUTH_TOKEN", "a-long-secret")]);
        let mut other = Server::start_in(user, Arc::clone(&state), &[], &[]);
        let id = start_session(&one, "a-long-secret");
        start_session(&other, "");
        let found = listed(user, &state);
        let mut owners: Vec<_> =
            found.iter().map(|session| (session["principal"].as_str(), session["server"].as_u64())).collect();
        owners.sort_unstable();
        let servers =
            [("local", &other), ("token", &one)].map(|(name, server)| (Some(name), Some(server.process.id().into())));
        assert_eq!(owners, servers, "{user:?}");

        let output = session(user, &state, &["exec", &id, "--", "echo out; echo err >&2; exit 7"]);
        assert_eq!(
            (output.status.code(), output.stdout.as_slice(), output.stderr.as_slice()),
            (Some(7), b"out\n".as_slice(), b"err\n".as_slice())
        );
        assert_eq!(text(&session(user, &state, &["exec", &id, "--", "printf", "%s|", "a b", "$HOME"])), "a b|$HOME|");
        assert_eq!(text(&session(user, &state, &["exec", &id, "--code", "6 * 7"])), "42\n");
        let bytes = session(user, &state, &["exec", &id, "--", r"printf '\377\0\376'"]);
        assert_eq!(bytes.stdout, b"\xff\0\xfe", "bytes that are not UTF-8 are passed on unchanged");
        let raised = session(user, &state, &["exec", &id[..20], "--code", "1 / 0"]);
        assert_eq!(raised.status.code(), Some(1), "an ID may be abbreviated: {raised:?}");
        let timed_out = session(user, &state, &["exec", &id, "--timeout", "0.5", "--", "sleep 100"]);
        assert_eq!(timed_out.status.code(), Some(124));

        let calls: Value =
            serde_json::from_str(&text(&session(user, &state, &["logs", &id, "--json"]))).expect("valid JSON");
        let calls: Vec<_> = calls
            .as_array()
            .expect("a list")
            .iter()
            .map(|call| (&call["kind"], &call["status"], &call["exit_code"]))
            .collect();
        assert_eq!(calls.len(), 6);
        assert_eq!(calls[0], (&json!("command"), &json!("error"), &json!(7)));
        assert_eq!(calls[4], (&json!("code"), &json!("error"), &Value::Null));
        assert!(text(&session(user, &state, &["logs", &id])).contains("sleep 100"));
        assert!(text(&session(user, &state, &["show", &id])).contains("enforced_by.memory"));

        assert_eq!(text(&session(user, &state, &["stop", &id])), format!("stopped {id}\n"));
        let refused = session(user, &state, &["show", &id]);
        let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(125));
        assert!(stderr.contains(&format!("error: session not found: {id}\n")) && stderr.contains("hint: "), "{stderr}");

        // The next command removes the socket of a killed server; a server that exits removes its socket itself.
        let (killed, ended) = (socket_of(&other), socket_of(&one));
        other.process.kill().expect("process is alive");
        drop(other);
        assert!(killed.exists() && ended.exists());
        assert!(listed(user, &state).is_empty());
        assert!(!killed.exists(), "{user:?}");
        drop(one);
        assert!(!ended.exists(), "{user:?}");
    });
}

/// The server checks the peer credentials, so that open permissions of the directory and the socket allow no other user.
#[test]
fn only_owner_and_root_may_use_the_control_socket() {
    const REQUEST: &str = "
import socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
try:
    s.sendall(b'GET /v1/sessions HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n')
    print(s.recv(12).decode())
except (BrokenPipeError, ConnectionResetError):
    print('')
";
    if let Some(reason) = [User::Plain, User::WithSubids].into_iter().find_map(User::unavailable) {
        return skip("only_owner_and_root_may_use_the_control_socket", &reason);
    }
    let server = Server::start_as(User::Plain, &[], &[]);
    let socket = socket_of(&server);
    let mode = |path: &Path| std::fs::metadata(path).expect("file exists").permissions().mode() & 0o777;
    assert_eq!(mode(socket.parent().expect("parent directory")), 0o700);
    for path in [server.state.path(), &server.state.path().join("servers"), &socket] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("permissions are set");
    }
    for (user, expected) in [(User::Plain, "HTTP/1.1 200\n"), (User::Root, "HTTP/1.1 200\n"), (User::WithSubids, "\n")]
    {
        let output = user
            .program(Path::new("/usr/bin/python3"))
            .args(["-c", REQUEST])
            .arg(&socket)
            .output()
            .expect("command runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{user:?}: {output:?}");
    }
}

#[test]
fn long_output_is_passed_on_completely() {
    let server = Server::start(&[], &[]);
    let id = start_session(&server, "");
    let line = "head -c 700000 /dev/zero; seq 50000 >&2; printf 'end\\377'";
    let output = session(User::Root, &server.state, &["exec", &id, "--", line]);
    assert!(output.status.success());
    assert!(output.stdout.len() == 700_004 && output.stdout.ends_with(b"end\xff"), "{} bytes", output.stdout.len());
    let lines = String::from_utf8_lossy(&output.stderr);
    assert!(lines.lines().map(str::parse).eq((1..=50_000).map(Ok::<u32, _>)), "{} bytes", output.stderr.len());
    let timed_out = session(User::Root, &server.state, &["exec", "--timeout", "1", &id, "--", "sleep 20"]);
    assert_eq!(timed_out.status.code(), Some(124));
    assert!(
        String::from_utf8_lossy(&timed_out.stderr).contains("the command was stopped after its timeout"),
        "{timed_out:?}"
    );
}
