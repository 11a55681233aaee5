//! An endpoint that serves one run alone: what its scope leaves out is neither there nor done, on no way in.

mod desk;
mod own;
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

use desk::{Desk, is_denied, rest, run, tools};

#[test]
fn without_the_command_capability_no_command_is_shown_or_run() {
    for_each_user("without_the_command_capability_no_command_is_shown_or_run", |who| {
        let desk = Desk::of(who);
        let server = desk.serve(&json!({"capabilities": ["code", "sessions"]}), &[]);
        let shown = tools(&server);
        assert_eq!(shown, ["execute_code", "get_sessions", "stop_session", "get_volume_path", "run_python"]);
        for (tool, arguments) in [
            ("execute_command", json!({"command": "id"})),
            ("read_file", json!({"session_id": "s", "path": "x"})),
            ("write_file", json!({"session_id": "s", "path": "x", "content": ""})),
            ("list_files", json!({"session_id": "s"})),
            ("search_tools", json!({"query": "x"})),
        ] {
            let answer = server.call(tool, &arguments);
            assert!(is_denied(&answer), "{tool}: {answer}");
        }
        let made = run(&server, "python", "print(6 * 7)");
        assert_eq!(made["stdout"], "42\n");
        let session = format!("/v1/sessions/{}", made["session_id"].as_str().expect("an id"));
        for (request, body) in [
            (format!("POST {session}/exec"), json!({"command": "id"})),
            (format!("POST {session}/processes"), json!({"command": "sleep 100"})),
            (format!("GET {session}/processes"), Value::Null),
            (format!("GET {session}/processes/2/ws"), Value::Null),
            (format!("GET {session}/files/x"), Value::Null),
            (format!("PUT {session}/files/x"), json!("x")),
            ("GET /v1/servers".into(), Value::Null),
        ] {
            let (status, answer) = rest(&server, &request, &body);
            assert_eq!((status, &answer["error_code"]), (403, &json!("POLICY_DENIED")), "{request}: {answer}");
        }
        let (status, answer) = rest(&server, &format!("POST {session}/exec"), &json!({"code": "print(1)"}));
        assert_eq!((status, &answer["stdout"]), (200, &json!("1\n")), "{answer}");
        // Whoever runs the server is not bound by the scope of a run.
        let mut operator = who.ringfence();
        operator.args(["session", "exec", made["session_id"].as_str().expect("an id"), "--", "echo of the operator"]);
        let output = operator.env("RINGFENCE_STATE_DIR", desk.state.path()).output().expect("it runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "of the operator\n", "{output:?}");
    });
}

#[test]
fn the_same_holds_over_stdio() {
    let desk = Desk::of(User::Root);
    let scope = desk.scope(&json!({"capabilities": ["sessions"]}));
    let mut command = User::Root.ringfence();
    command.args(["serve", "--stdio", "--scope", &scope]).env("RINGFENCE_STATE_DIR", desk.state.path());
    let mut process = command.stdin(Stdio::piped()).spawn().expect("it starts");
    let mut input = process.stdin.take().expect("stdin is piped");
    let requests = [
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call",
            "params": {"name": "execute_command", "arguments": {"command": "id"}}}),
        json!({"jsonrpc": "2.0", "id": 3, "method": "resources/templates/list"}),
    ];
    let output = std::thread::scope(|threads| {
        let mut output = std::io::BufReader::new(process.stdout.take().expect("stdout is piped"));
        let answers = threads.spawn(move || {
            let mut answers = [Value::Null, Value::Null, Value::Null];
            for _ in 0..answers.len() {
                let mut line = String::new();
                std::io::BufRead::read_line(&mut output, &mut line).expect("it is text");
                let answer: Value = serde_json::from_str(&line).expect("JSON");
                let id = usize::try_from(answer["id"].as_u64().expect("an id")).expect("it is small");
                answers[id - 1] = answer;
            }
            answers
        });
        for request in requests {
            writeln!(input, "{request}").expect("it reads");
        }
        let answers = answers.join().expect("it answers");
        drop(input);
        answers
    });
    let names: Vec<&str> = output[0]["result"]["tools"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|tool| tool["name"].as_str())
        .collect();
    assert_eq!(names, ["get_sessions", "stop_session", "get_volume_path"]);
    assert!(is_denied(&output[1]), "{}", output[1]);
    assert_eq!(output[2]["result"]["resourceTemplates"], json!([]));
    let ended = process.wait().expect("it ends with its input");
    assert!(ended.success() && !desk.path("scope.json").exists(), "the file is removed at the end");
}

#[test]
fn a_scope_that_does_not_hold_is_refused_at_the_start() {
    for_each_user("a_scope_that_does_not_hold_is_refused_at_the_start", |who| {
        let desk = Desk::of(who);
        let scope = desk.scope(&json!({}));
        desk.allow(0o644);
        let said = desk.refusal(&["--scope", &scope]);
        assert!(said.contains("can be read or written by others (mode 0644)"), "{said}");
        assert!(said.contains("hint: `chmod 600 ") && desk.path("scope.json").exists(), "{said}");
        let scope = desk.scope(&json!({"capabilities": ["code", "root"]}));
        let said = desk.refusal(&["--scope", &scope]);
        assert!(said.contains("unknown capability `root`") && said.contains("files.write"), "{said}");
        let scope = desk.scope(&json!({"alowed_roots": []}));
        assert!(desk.refusal(&["--scope", &scope]).contains("unknown field `alowed_roots`"));
        let scope = desk.scope(&json!({"capability_profile": "none"}));
        assert!(desk.refusal(&["--scope", &scope]).contains("unknown profile `none`"));
        let missing = desk::text(&desk.path("missing.json"));
        assert!(desk.refusal(&["--scope", &missing]).contains("cannot read the scope file"));
    });
}

#[test]
fn a_scope_by_variable_is_left_to_whoever_set_it() {
    let desk = Desk::of(User::Root);
    let scope = desk.scope(&json!({"capabilities": ["code"]}));
    let state = Arc::clone(&desk.state);
    let server = Server::start_in(User::Root, state, &[], &[("RINGFENCE_SCOPE_FILE", &scope)]);
    assert_eq!(tools(&server), ["execute_code", "run_python"]);
    drop(server);
    assert!(desk.path("scope.json").exists());
}

#[test]
fn calls_under_way_are_awaited_if_the_scope_says_so() {
    for (drain, expected) in [(json!(true), "through\n"), (json!(false), "")] {
        let desk = Desk::of(User::Root);
        let mut server = desk.serve(&json!({"drain": drain}), &[]);
        let session = run(&server, "bash", "true")["session_id"].as_str().expect("an id").to_owned();
        let exec = format!("POST /v1/sessions/{session}/exec");
        let mut under_way = server.send(&exec, &json!({"command": "sleep 2; echo through"}).to_string());
        wait_until("the call is under way", || {
            rest(&server, &format!("GET /v1/sessions/{session}"), &Value::Null).1["status"] == "busy"
        });
        kill_process(Pid::from_child(&server.process), Signal::TERM).expect("it lives");
        let mut answer = String::new();
        let _ = std::io::Read::read_to_string(&mut under_way, &mut answer);
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
        let body: Value = serde_json::from_str(body).unwrap_or_default();
        assert_eq!(body["stdout"].as_str().unwrap_or_default(), expected, "drain {drain}: {answer}");
        server.process.wait().expect("it ends");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_named_in_its_audit_and_a_worker_has_what_is_its_own() {
    let desk = Desk::of(User::Root);
    let scope = |namespace: &str| json!({"worker_namespace": namespace, "model_identity": {"model_id": "m-1"}});
    let remember = "import mcp.runtime as runtime\nruntime.save_memory('key', 'of one')";
    let recall = "import mcp.runtime as runtime\nprint(runtime.load_memory('key'))";
    let code = |server: &Server, code: &str| server.call("run_python", &json!({"code": code})).to_string();
    let server = desk.serve(&scope("one"), &[]);
    let saved = code(&server, remember);
    assert!(saved.contains("\"isError\":false") || !saved.contains("isError"), "{saved}");
    drop(server);
    let server = desk.serve(&scope("two"), &[]);
    assert!(!code(&server, recall).contains("of one"));
    drop(server);
    let server = desk.serve(&scope("one"), &[]);
    let recalled = code(&server, recall);
    assert!(recalled.contains("of one"), "{recalled}");
    drop(server);
    let store = Store::open(desk.state.path()).expect("it is there");
    let rows = store.recent_audit(None, 100).await.expect("it is read");
    assert!(rows.iter().any(|row| row.principal.as_deref() == Some("local@one")));
    for row in &rows {
        let detail: Value = serde_json::from_str(&row.detail.to_string()).expect("JSON");
        assert_eq!(detail["run"]["run_id"], "r-1", "{detail}");
        assert_eq!(detail["run"]["model_identity"], json!({"model_id": "m-1"}), "{detail}");
    }
    store.close().await;
}

#[test]
fn sessions_of_one_scope_are_not_taken_over_by_a_server_of_another() {
    let desk = Desk::of(User::Root);
    let own = json!({"run_id": "r-own"});
    let server = desk.serve(&own, &[]);
    let session = run(&server, "python", "x = 'kept'")["session_id"].as_str().expect("an id").to_owned();
    let state = server.kill();
    let again = json!({"code": "print(x)", "session_id": session});
    for other in [Server::start_in(User::Root, state, &[], &[]), desk.serve(&json!({"run_id": "r-other"}), &[])] {
        let answer = other.call("execute_code", &again);
        assert_eq!(answer["error"]["data"]["error_code"], "SESSION_NOT_FOUND", "{answer}");
    }
    let server = desk.serve(&own, &[]);
    let answer = server.call("execute_code", &again);
    assert_eq!(answer["result"]["structuredContent"]["stdout"], "kept\n", "{answer}");
}
