//! Start and exit of supervisors: errors at start, signals, and the files that remain.

use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// Options of a supervisor that never becomes ready, because the expected tool does not exist.
const NEVER_READY: [&str; 4] = ["--expect-tool", "fly", "--preflight-timeout-ms", "60000"];

/// Returns the worker of a supervisor that is not ready yet.
fn first_worker(state: &TempDir) -> u32 {
    let mut found = None;
    wait_until("no worker starts", || {
        found = status(state)["worker_pid"].as_u64();
        found.is_some()
    });
    found.and_then(|pid| u32::try_from(pid).ok()).expect("process ID")
}

/// Sends a signal and returns the exit code.
fn exit_code_after(process: &mut std::process::Child, sent: Signal) -> Option<i32> {
    signal(process.id(), sent);
    let mut status = None;
    wait_until("the process does not exit", || {
        status = process.try_wait().expect("child process");
        status.is_some()
    });
    status.and_then(|status| status.code())
}

/// Starts a supervisor through another program, which executes it.
fn up_by(program: &str, options: &[&str]) -> Server {
    let state = Arc::new(tempfile::tempdir().expect("directory is created"));
    let mut command = Command::new(program);
    command.args(options).arg(BINARY).args(["up", "--port", "0"]).env("RINGFENCE_STATE_DIR", state.path());
    command.stdin(Stdio::null()).stderr(Stdio::null());
    start(command, state).0
}

#[test]
fn long_call_gets_an_error_and_exit_takes_at_most_ten_seconds() {
    let (mut server, _) = up(&[], &[]);
    let session = server.create_session("python", "import time");
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "execute_code",
        "arguments": {"code": "time.sleep(60)", "session_id": session, "timeout": 100}}});
    let mut stream = server.send("POST /mcp", &call.to_string());
    wait_until("the call does not start", || {
        let list = server.call("get_sessions", &json!({"session_id": session}));
        list["result"]["structuredContent"]["sessions"][0]["status"] == "busy"
    });
    let (process_tree, start) = (process_tree_with_sandbox(&server.state), Instant::now());
    assert_eq!(exit_code_after(&mut server.process, Signal::TERM), Some(0));
    assert!(start.elapsed() <= Duration::from_secs(10), "the exit took {:?}", start.elapsed());
    assert_ended(&process_tree);
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("response is read");
    let (_, body) = response.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {response}"));
    let body: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {response}"));
    assert!(body["error"].is_object() != (body["result"]["isError"] == true), "{body}");
}

#[test]
fn hangup_ends_the_supervisor_unless_it_is_ignored() {
    // The test runner may ignore SIGHUP, which children inherit.
    let mut server = up_by("env", &["--default-signal=HUP"]);
    server.create_session("python", "x = 1");
    let process_tree = process_tree_with_sandbox(&server.state);
    assert_eq!(exit_code_after(&mut server.process, Signal::HUP), Some(0));
    assert_ended(&process_tree);

    let server = up_by("nohup", &[]);
    let before = worker(&server.state);
    signal(server.process.id(), Signal::HUP);
    let session = server.create_session("python", "x = 'preserved'");
    assert_eq!(server.execute(&session, "print(x)")["stdout"], "preserved\n");
    // Guests do not inherit the ignored signal.
    let ignored = "next(line.split()[1] for line in open('/proc/self/status') if line.startswith('SigIgn'))";
    assert_eq!(server.execute(&session, &format!("print(int({ignored}, 16) & 1)"))["stdout"], "0\n");
    assert_eq!(worker(&server.state), before);
    end(server);
}

#[test]
fn supervisor_can_be_stopped_before_it_is_ready() {
    let state = tempfile::tempdir().expect("directory is created");
    let mut process = command(&state, &NEVER_READY, &[]).stdout(Stdio::piped()).spawn().expect("process starts");
    let worker = first_worker(&state);
    assert_eq!(exit_code_after(&mut process, Signal::TERM), Some(0));
    assert!(!process::is_alive(worker));
    let mut stdout = String::new();
    process.stdout.take().expect("stdout is piped").read_to_string(&mut stdout).expect("valid UTF-8");
    assert_eq!(stdout, "", "no endpoint is printed");
    assert_eq!(processes_of(&state), [0; 0]);
}

#[test]
fn port_in_use_is_reported_and_the_scope_file_is_not_removed() {
    let (state, listener) =
        (tempfile::tempdir().expect("directory is created"), TcpListener::bind("127.0.0.1:0").expect("a port"));
    let port = listener.local_addr().expect("an address").port().to_string();
    let (scope, endpoint) = (state.path().join("scope.json"), state.path().join("endpoint"));
    let text = json!({"session_id": "s", "run_id": "r", "drain": true, "capabilities": ["code"], "allowed_roots": []});
    std::fs::write(&scope, text.to_string()).expect("file is written");
    std::fs::set_permissions(&scope, std::fs::Permissions::from_mode(0o600)).expect("file is accessible");
    std::fs::write(&endpoint, "another endpoint").expect("file is written");
    let mut command = Command::new(BINARY);
    command.args(["up", "--port", &port, "--scope"]).arg(&scope).arg("--endpoint-file").arg(&endpoint);
    let output = command.env("RINGFENCE_STATE_DIR", state.path()).stdin(Stdio::null()).output().expect("command runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(125), 0), "{stderr}");
    assert!(stderr.contains("in use") && stderr.contains("hint: choose another --port"), "{stderr}");
    assert!(scope.exists(), "the scope file was removed without being used");
    assert_eq!(std::fs::read_to_string(&endpoint).expect("file exists"), "another endpoint");
}

#[test]
fn closed_stdout_does_not_change_the_exit_code_of_a_failed_start() {
    let state = tempfile::tempdir().expect("directory is created");
    let file = state.path().join("file");
    std::fs::write(&file, "").expect("file is written");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = command(&state, &[], &[]);
    let status = command.env("RINGFENCE_STATE_DIR", &file).stdout(writer).status().expect("command runs");
    assert_eq!(status.code(), Some(75));
}

#[test]
fn stale_endpoint_file_is_removed_but_a_foreign_one_is_not() {
    let directory = tempfile::tempdir().expect("directory is created");
    let file = directory.path().join("endpoint");
    let options = ["--endpoint-file", file.to_str().expect("valid UTF-8")];
    std::fs::write(&file, "http://127.0.0.1:1/mcp\n").expect("file is written");
    let state = tempfile::tempdir().expect("directory is created");
    let mut process = command(&state, &[&NEVER_READY[..], &options].concat(), &[]).spawn().expect("process starts");
    first_worker(&state);
    wait_until("the stale endpoint file is not removed", || !file.exists());
    assert_eq!(exit_code_after(&mut process, Signal::TERM), Some(0));
    assert!(!file.exists());

    let (server, line) = up(&options, &[]);
    assert_eq!(std::fs::read_to_string(&file).expect("file exists").trim_end(), line["endpoint"]);
    std::fs::write(&file, "http://127.0.0.1:2/mcp\n").expect("file is written");
    end(server);
    assert_eq!(std::fs::read_to_string(&file).expect("file exists"), "http://127.0.0.1:2/mcp\n");
}

#[test]
fn changed_token_is_used_by_the_next_worker_and_its_probes() {
    let directory = tempfile::tempdir().expect("directory is created");
    let (config, secret) = (directory.path().join("ringfence.toml"), directory.path().join("secret"));
    std::fs::write(&config, format!("[server.tokens.agent]\nfile = {secret:?}\n")).expect("file is written");
    std::fs::write(&secret, "the-first-secret").expect("file is written");
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).expect("file is accessible");
    let options = ["--config", config.to_str().expect("valid UTF-8"), "--preflight-timeout-ms", "8000"];
    let (server, _) = up(&options, &[]);
    let first = worker(&server.state);
    std::fs::write(&secret, "the-second-secret").expect("file is written");
    signal(first, Signal::KILL);
    wait_until("the worker is not replaced", || worker(&server.state) != first);
    let headers = |secret: &str| format!("Host: {}\r\nAuthorization: Bearer {secret}\r\n", server.address);
    assert_eq!(server.http("GET /v1/sessions", &headers("the-first-secret"), "").0, 401);
    assert_eq!(server.http("GET /v1/sessions", &headers("the-second-secret"), "").0, 200);
    assert_eq!(status(&server.state)["restarts"], 1);
}

#[test]
fn unresponsive_supervisor_is_reported() {
    let directory = tempfile::tempdir().expect("directory is created");
    let config = directory.path().join("ringfence.toml");
    let (server, line) = up(&[], &[]);
    std::fs::write(&config, format!("[sessions]\nstate_dir = {:?}\n", server.state.path())).expect("file is written");
    let query = |options: &[&str]| {
        let mut command = Command::new(BINARY);
        command.arg("status").arg("--config").arg(&config).args(options).env_remove("RINGFENCE_STATE_DIR");
        let output = command.output().expect("command runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("valid UTF-8")
    };
    assert!(query(&[]).contains(line["endpoint"].as_str().expect("a string")));
    let pid = server.process.id();
    let stopped = Stopped::new(pid);
    let table = query(&[]);
    let list: Value = serde_json::from_str(&query(&["--json"])).expect("valid JSON");
    drop(stopped);
    assert!(table.contains(&format!("supervisor {pid} does not respond")), "{table}");
    assert_eq!(list, json!([{"pid": pid, "error": "the supervisor does not respond"}]));
    wait_until("the supervisor does not continue", || status(&server.state)["pid"] == pid);
}
