//! How it begins and ends: what stands in its way, who tells it to end, and what files it leaves.

use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// Never ready: there is no such tool.
const NEVER_READY: [&str; 4] = ["--expect-tool", "fly", "--preflight-timeout-ms", "60000"];

/// Of one that is not ready yet.
fn first_worker(state: &TempDir) -> u32 {
    let mut found = None;
    wait_until("no worker starts", || {
        found = status(state)["worker_pid"].as_u64();
        found.is_some()
    });
    found.and_then(|pid| u32::try_from(pid).ok()).expect("it was found")
}

fn code_after(process: &mut std::process::Child, told: Signal) -> Option<i32> {
    signal(process.id(), told);
    let mut ended = None;
    wait_until("it does not end", || {
        ended = process.try_wait().expect("it is ours");
        ended.is_some()
    });
    ended.and_then(|status| status.code())
}

/// Started by another program, which becomes it.
fn up_by(program: &str, options: &[&str]) -> Server {
    let state = Arc::new(tempfile::tempdir().expect("a directory"));
    let mut command = Command::new(program);
    command.args(options).arg(BINARY).args(["up", "--port", "0"]).env("RINGFENCE_STATE_DIR", state.path());
    command.stdin(Stdio::null()).stderr(Stdio::null());
    listening(command, state).0
}

#[test]
fn a_call_that_takes_too_long_is_told_so_and_the_end_takes_no_more_than_ten_seconds() {
    let (mut server, _) = up(&[], &[]);
    let session = server.create_session("python", "import time");
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "execute_code",
        "arguments": {"code": "time.sleep(60)", "session_id": session, "timeout": 100}}});
    let mut stream = server.send("POST /mcp", &call.to_string());
    wait_until("the call does not start", || {
        let told = server.call("get_sessions", &json!({"session_id": session}));
        told["result"]["structuredContent"]["sessions"][0]["status"] == "busy"
    });
    let (family, asked) = (family_with_sandbox(&server.state), Instant::now());
    assert_eq!(code_after(&mut server.process, Signal::TERM), Some(0));
    assert!(asked.elapsed() <= Duration::from_secs(10), "it took {:?}", asked.elapsed());
    assert_gone(&family);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it is answered");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("it is told nothing: {answer}"));
    let body: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
    assert!(body["error"].is_object() != (body["result"]["isError"] == true), "{body}");
}

#[test]
fn a_terminal_that_is_gone_ends_it_in_order_unless_it_was_told_not_to_mind() {
    // Whoever runs the tests may ignore it.
    let mut server = up_by("env", &["--default-signal=HUP"]);
    server.create_session("python", "x = 1");
    let family = family_with_sandbox(&server.state);
    assert_eq!(code_after(&mut server.process, Signal::HUP), Some(0));
    assert_gone(&family);

    let server = up_by("nohup", &[]);
    let before = worker(&server.state);
    signal(server.process.id(), Signal::HUP);
    let session = server.create_session("python", "x = 'kept'");
    assert_eq!(server.execute(&session, "print(x)")["stdout"], "kept\n");
    // Its guests are told to end by the same signal as everybody's.
    let ignored = "next(line.split()[1] for line in open('/proc/self/status') if line.startswith('SigIgn'))";
    assert_eq!(server.execute(&session, &format!("print(int({ignored}, 16) & 1)"))["stdout"], "0\n");
    assert_eq!(worker(&server.state), before);
    end(server);
}

#[test]
fn it_is_stopped_before_it_is_ready() {
    let state = tempfile::tempdir().expect("a directory");
    let mut process = command(&state, &NEVER_READY, &[]).stdout(Stdio::piped()).spawn().expect("it starts");
    let worker = first_worker(&state);
    assert_eq!(code_after(&mut process, Signal::TERM), Some(0));
    assert!(!process::is_alive(worker));
    let mut said = String::new();
    process.stdout.take().expect("stdout is piped").read_to_string(&mut said).expect("it is text");
    assert_eq!(said, "", "nothing was ready");
    assert_eq!(processes_of(&state), [0; 0]);
}

#[test]
fn a_port_that_is_taken_is_told_and_the_scope_is_kept() {
    let (state, taken) = (tempfile::tempdir().expect("a directory"), TcpListener::bind("127.0.0.1:0").expect("a port"));
    let port = taken.local_addr().expect("an address").port().to_string();
    let (scope, endpoint) = (state.path().join("scope.json"), state.path().join("endpoint"));
    let text = json!({"session_id": "s", "run_id": "r", "drain": true, "capabilities": ["code"], "allowed_roots": []});
    std::fs::write(&scope, text.to_string()).expect("it is written");
    std::fs::set_permissions(&scope, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
    std::fs::write(&endpoint, "of another").expect("it is written");
    let mut command = Command::new(BINARY);
    command.args(["up", "--port", &port, "--scope"]).arg(&scope).arg("--endpoint-file").arg(&endpoint);
    let output = command.env("RINGFENCE_STATE_DIR", state.path()).stdin(Stdio::null()).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(125), 0), "{said}");
    assert!(said.contains("in use") && said.contains("hint: choose another --port"), "{said}");
    assert!(scope.exists(), "it was in no use, and is gone");
    assert_eq!(std::fs::read_to_string(&endpoint).expect("it is there"), "of another");
}

#[test]
fn it_gives_up_with_its_own_code_though_nobody_reads_why() {
    let state = tempfile::tempdir().expect("a directory");
    let file = state.path().join("file");
    std::fs::write(&file, "").expect("it is written");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = command(&state, &[], &[]);
    let status = command.env("RINGFENCE_STATE_DIR", &file).stdout(writer).status().expect("it runs");
    assert_eq!(status.code(), Some(75));
}

#[test]
fn an_endpoint_of_before_is_not_named_and_one_of_another_is_left() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("endpoint");
    let named = ["--endpoint-file", file.to_str().expect("it is text")];
    std::fs::write(&file, "http://127.0.0.1:1/mcp\n").expect("it is written");
    let state = tempfile::tempdir().expect("a directory");
    let mut process = command(&state, &[&NEVER_READY[..], &named].concat(), &[]).spawn().expect("it starts");
    first_worker(&state);
    wait_until("an endpoint is named that is none", || !file.exists());
    assert_eq!(code_after(&mut process, Signal::TERM), Some(0));
    assert!(!file.exists());

    let (server, line) = up(&named, &[]);
    assert_eq!(std::fs::read_to_string(&file).expect("it is there").trim_end(), line["endpoint"]);
    std::fs::write(&file, "http://127.0.0.1:2/mcp\n").expect("it is written");
    end(server);
    assert_eq!(std::fs::read_to_string(&file).expect("it is there"), "http://127.0.0.1:2/mcp\n");
}

#[test]
fn a_token_that_has_changed_is_known_to_the_next_worker_and_to_its_probes() {
    let directory = tempfile::tempdir().expect("a directory");
    let (config, secret) = (directory.path().join("ringfence.toml"), directory.path().join("secret"));
    std::fs::write(&config, format!("[server.tokens.agent]\nfile = {secret:?}\n")).expect("it is written");
    std::fs::write(&secret, "the-first-secret").expect("it is written");
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
    let options = ["--config", config.to_str().expect("it is text"), "--preflight-timeout-ms", "8000"];
    let (server, _) = up(&options, &[]);
    let first = worker(&server.state);
    std::fs::write(&secret, "the-second-secret").expect("it is written");
    signal(first, Signal::KILL);
    wait_until("no other takes its place", || worker(&server.state) != first);
    let headers = |secret: &str| format!("Host: {}\r\nAuthorization: Bearer {secret}\r\n", server.address);
    assert_eq!(server.http("GET /v1/sessions", &headers("the-first-secret"), "").0, 401);
    assert_eq!(server.http("GET /v1/sessions", &headers("the-second-secret"), "").0, 200);
    assert_eq!(status(&server.state)["restarts"], 1);
}

#[test]
fn a_supervisor_that_does_not_answer_is_told_of() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("ringfence.toml");
    let (server, line) = up(&[], &[]);
    std::fs::write(&config, format!("[sessions]\nstate_dir = {:?}\n", server.state.path())).expect("it is written");
    let ask = |options: &[&str]| {
        let mut command = Command::new(BINARY);
        command.arg("status").arg("--config").arg(&config).args(options).env_remove("RINGFENCE_STATE_DIR");
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("it is text")
    };
    assert!(ask(&[]).contains(line["endpoint"].as_str().expect("it is text")));
    let pid = server.process.id();
    let halted = Halted::new(pid);
    let shown = ask(&[]);
    let told: Value = serde_json::from_str(&ask(&["--json"])).expect("it is JSON");
    drop(halted);
    assert!(shown.contains(&format!("supervisor {pid} does not respond")), "{shown}");
    assert_eq!(told, json!([{"pid": pid, "error": "the supervisor does not respond"}]));
    wait_until("it does not go on", || status(&server.state)["pid"] == pid);
}
