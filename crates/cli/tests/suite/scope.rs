//! An endpoint with a scope: features outside of the scope are neither listed nor available, on any interface.

mod fixture;
mod protected_files;
mod roots;
mod servers;
mod table;
mod up;

use std::io::Write as _;
use std::process::Stdio;
use std::sync::Arc;

use ringfence_store::Store;
use ringfence_testkit::{Server, User, for_each_user, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use fixture::{Fixture, is_denied, rest, run, tools};

#[test]
fn commands_are_hidden_and_refused_without_the_command_capability() {
    for_each_user("commands_are_hidden_and_refused_without_the_command_capability", |user| {
        let fixture = Fixture::new(user);
        let server = fixture.serve(&json!({"capabilities": ["code", "sessions"]}), &[]);
        let listed = tools(&server);
        assert_eq!(listed, ["execute_code", "get_sessions", "stop_session", "get_volume_path", "run_python"]);
        for (tool, arguments) in [
            ("execute_command", json!({"command": "id"})),
            ("read_file", json!({"session_id": "s", "path": "x"})),
            ("write_file", json!({"session_id": "s", "path": "x", "content": ""})),
            ("list_files", json!({"session_id": "s"})),
            ("search_tools", json!({"query": "x"})),
        ] {
            let response = server.call(tool, &arguments);
            assert!(is_denied(&response), "{tool}: {response}");
        }
        let session = run(&server, "python", "print(6 * 7)");
        assert_eq!(session["stdout"], "42\n");
        let session_id = session["session_id"].as_str().expect("an ID");
        let session = format!("/v1/sessions/{session_id}");
        for (request, body) in [
            (format!("POST {session}/exec"), json!({"command": "id"})),
            (format!("POST {session}/processes"), json!({"command": "sleep 100"})),
            (format!("GET {session}/processes"), Value::Null),
            (format!("GET {session}/processes/2/ws"), Value::Null),
            (format!("GET {session}/files/x"), Value::Null),
            (format!("PUT {session}/files/x"), json!("x")),
            ("GET /v1/servers".into(), Value::Null),
        ] {
            let (status, response) = rest(&server, &request, &body);
            assert_eq!((status, &response["error_code"]), (403, &json!("POLICY_DENIED")), "{request}: {response}");
        }
        let (status, response) = rest(&server, &format!("POST {session}/exec"), &json!({"code": "print(1)"}));
        assert_eq!((status, &response["stdout"]), (200, &json!("1\n")), "{response}");
        // The scope does not limit the operator of the server.
        let mut operator = user.ringfence();
        operator.args(["session", "exec", session_id, "--", "echo from the operator"]);
        let output = operator.env("RINGFENCE_STATE_DIR", fixture.state.path()).output().expect("command runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "from the operator\n", "{output:?}");
    });
}

#[test]
fn scope_applies_over_stdio() {
    let fixture = Fixture::new(User::Root);
    let scope = fixture.scope(&json!({"capabilities": ["sessions"]}));
    let mut command = User::Root.ringfence();
    command.args(["serve", "--stdio", "--scope", &scope]).env("RINGFENCE_STATE_DIR", fixture.state.path());
    let mut process = command.stdin(Stdio::piped()).spawn().expect("process starts");
    let mut input = process.stdin.take().expect("stdin is piped");
    let requests = [
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call",
            "params": {"name": "execute_command", "arguments": {"command": "id"}}}),
        json!({"jsonrpc": "2.0", "id": 3, "method": "resources/templates/list"}),
    ];
    let responses = std::thread::scope(|threads| {
        let mut output = std::io::BufReader::new(process.stdout.take().expect("stdout is piped"));
        let reader = threads.spawn(move || {
            let mut responses = [Value::Null, Value::Null, Value::Null];
            for _ in 0..responses.len() {
                let mut line = String::new();
                std::io::BufRead::read_line(&mut output, &mut line).expect("valid UTF-8");
                let response: Value = serde_json::from_str(&line).expect("valid JSON");
                let id = usize::try_from(response["id"].as_u64().expect("an ID")).expect("a small ID");
                responses[id - 1] = response;
            }
            responses
        });
        for request in requests {
            writeln!(input, "{request}").expect("request is written");
        }
        let responses = reader.join().expect("responses are read");
        drop(input);
        responses
    });
    let names: Vec<&str> = responses[0]["result"]["tools"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|tool| tool["name"].as_str())
        .collect();
    assert_eq!(names, ["get_sessions", "stop_session", "get_volume_path"]);
    assert!(is_denied(&responses[1]), "{}", responses[1]);
    assert_eq!(responses[2]["result"]["resourceTemplates"], json!([]));
    let status = process.wait().expect("process exits at the end of its input");
    assert!(status.success() && !fixture.path("scope.json").exists(), "the file is removed at exit");
}

#[test]
fn invalid_scope_is_refused_at_start() {
    for_each_user("invalid_scope_is_refused_at_start", |user| {
        let fixture = Fixture::new(user);
        let scope = fixture.scope(&json!({}));
        fixture.set_scope_mode(0o644);
        let stderr = fixture.failed_serve(&["--scope", &scope]);
        assert!(stderr.contains("can be read or written by others (mode 0644)"), "{stderr}");
        assert!(stderr.contains("hint: `chmod 600 ") && fixture.path("scope.json").exists(), "{stderr}");
        let scope = fixture.scope(&json!({"capabilities": ["code", "root"]}));
        let stderr = fixture.failed_serve(&["--scope", &scope]);
        assert!(stderr.contains("unknown capability `root`") && stderr.contains("files.write"), "{stderr}");
        let scope = fixture.scope(&json!({"alowed_roots": []}));
        assert!(fixture.failed_serve(&["--scope", &scope]).contains("unknown field `alowed_roots`"));
        let scope = fixture.scope(&json!({"capability_profile": "none"}));
        assert!(fixture.failed_serve(&["--scope", &scope]).contains("unknown profile `none`"));
        let missing = fixture::text(&fixture.path("missing.json"));
        assert!(fixture.failed_serve(&["--scope", &missing]).contains("cannot read the scope file"));
    });
}

#[test]
fn scope_file_from_an_environment_variable_is_not_removed() {
    let fixture = Fixture::new(User::Root);
    let scope = fixture.scope(&json!({"capabilities": ["code"]}));
    let state = Arc::clone(&fixture.state);
    let server = Server::start_in(User::Root, state, &[], &[("RINGFENCE_SCOPE_FILE", &scope)]);
    assert_eq!(tools(&server), ["execute_code", "run_python"]);
    drop(server);
    assert!(fixture.path("scope.json").exists());
}

#[test]
fn running_calls_are_awaited_only_if_the_scope_sets_drain() {
    for (drain, expected) in [(json!(true), "finished\n"), (json!(false), "")] {
        let fixture = Fixture::new(User::Root);
        let mut server = fixture.serve(&json!({"drain": drain}), &[]);
        let session = run(&server, "bash", "true")["session_id"].as_str().expect("an ID").to_owned();
        let exec = format!("POST /v1/sessions/{session}/exec");
        let command = "until [ -e go ]; do sleep 0.01; done; echo finished";
        let mut running = server.send(&exec, &json!({"command": command}).to_string());
        wait_until("the call does not start", || {
            rest(&server, &format!("GET /v1/sessions/{session}"), &Value::Null).1["status"] == "busy"
        });
        kill_process(Pid::from_child(&server.process), Signal::TERM).expect("process is alive");
        if drain == json!(true) {
            let is_draining = || rest(&server, "GET /health", &Value::Null).0 == 503;
            wait_until("the server does not shut down", is_draining);
            server.create_file(&session, "go");
        } else {
            let has_exited = || server.process.try_wait().expect("process is queried").is_some();
            wait_until("the server waits for the call", has_exited);
        }
        let mut response = String::new();
        let _ = std::io::Read::read_to_string(&mut running, &mut response);
        let body = response.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
        let body: Value = serde_json::from_str(body).unwrap_or_default();
        assert_eq!(body["stdout"].as_str().unwrap_or_default(), expected, "drain {drain}: {response}");
        server.process.wait().expect("process exits");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_names_the_run_and_memory_is_separate_for_each_worker_namespace() {
    let fixture = Fixture::new(User::Root);
    let scope = |namespace: &str| json!({"worker_namespace": namespace, "model_identity": {"model_id": "m-1"}});
    let remember = "import mcp.runtime as runtime\nruntime.save_memory('key', 'value of one')";
    let recall = "import mcp.runtime as runtime\nprint(runtime.load_memory('key'))";
    let code = |server: &Server, code: &str| server.call("run_python", &json!({"code": code})).to_string();
    let server = fixture.serve(&scope("one"), &[]);
    let saved = code(&server, remember);
    assert!(saved.contains("\"isError\":false") || !saved.contains("isError"), "{saved}");
    drop(server);
    let server = fixture.serve(&scope("two"), &[]);
    assert!(!code(&server, recall).contains("value of one"));
    drop(server);
    let server = fixture.serve(&scope("one"), &[]);
    let recalled = code(&server, recall);
    assert!(recalled.contains("value of one"), "{recalled}");
    drop(server);
    let store = Store::open(fixture.state.path()).expect("store opens");
    let rows = store.recent_audit(None, 100).await.expect("rows are read");
    assert!(rows.iter().any(|row| row.principal.as_deref() == Some("local@one")));
    for row in &rows {
        let detail: Value = serde_json::from_str(&row.detail.to_string()).expect("valid JSON");
        assert_eq!(detail["run"]["run_id"], "r-1", "{detail}");
        assert_eq!(detail["run"]["model_identity"], json!({"model_id": "m-1"}), "{detail}");
    }
    store.close().await;
}

#[test]
fn sessions_are_not_adopted_by_a_server_with_another_scope() {
    let fixture = Fixture::new(User::Root);
    let scope = json!({"run_id": "r-first"});
    let server = fixture.serve(&scope, &[]);
    let session = run(&server, "python", "x = 'preserved'")["session_id"].as_str().expect("an ID").to_owned();
    let state = server.kill();
    let again = json!({"code": "print(x)", "session_id": session});
    for other in [Server::start_in(User::Root, state, &[], &[]), fixture.serve(&json!({"run_id": "r-other"}), &[])] {
        let response = other.call("execute_code", &again);
        assert_eq!(response["error"]["data"]["error_code"], "SESSION_NOT_FOUND", "{response}");
    }
    let server = fixture.serve(&scope, &[]);
    let response = server.call("execute_code", &again);
    assert_eq!(response["result"]["structuredContent"]["stdout"], "preserved\n", "{response}");
}

#[test]
fn file_tools_create_a_session_only_with_a_capability_for_it() {
    let fixture = Fixture::new(User::Root);
    let write = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "write_file", "arguments": {"path": "a", "content": ""}}});
    for (capabilities, is_created) in [(json!(["files.write"]), false), (json!(["files.write", "code"]), true)] {
        let server = fixture.serve(&json!({"capabilities": capabilities}), &[]);
        let (_, response) = rest(&server, "POST /mcp?session=a", &write);
        let has_session = response["result"]["structuredContent"]["session_created"] == true;
        assert_eq!(has_session, is_created, "{response}");
        assert_eq!(response.to_string().contains("may not create one for files"), !is_created, "{response}");
    }
}
