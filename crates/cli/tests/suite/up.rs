//! `ringfence up`: its reports, failures that it survives, and clean-up at exit.

mod kills;
mod service;
mod stops;
mod together;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_testkit::{Server, process, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::BINARY;

/// Starts a supervisor on a free port. Returns it with the line that it prints when it is ready.
pub(crate) fn up(options: &[&str], variables: &[(&str, &str)]) -> (Server, Value) {
    up_in(Arc::new(tempfile::tempdir().expect("directory is created")), options, variables)
}

pub(crate) fn up_in(state: Arc<TempDir>, options: &[&str], variables: &[(&str, &str)]) -> (Server, Value) {
    start(command(&state, options, variables), state)
}

/// Starts a supervisor. Returns it with the line that it prints when it is ready.
fn start(mut command: Command, state: Arc<TempDir>) -> (Server, Value) {
    let mut process = command.stdout(Stdio::piped()).spawn().expect("process starts");
    let mut lines = BufReader::new(process.stdout.take().expect("stdout is piped")).lines();
    let line = lines.next().expect("address is printed").expect("valid UTF-8");
    let line: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
    std::thread::spawn(move || lines.count());
    let address = line["endpoint"].as_str().and_then(|url| url.strip_prefix("http://")?.strip_suffix("/mcp"));
    let address = address.unwrap_or_else(|| panic!("no endpoint: {line}")).to_owned();
    (Server { process, address, state }, line)
}

pub(crate) fn command(state: &TempDir, options: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(BINARY);
    command.env("RINGFENCE_STATE_DIR", state.path()).envs(variables.iter().copied());
    command.args(["up", "--port", "0"]).args(options).stdin(Stdio::null()).stderr(Stdio::null());
    command
}

/// Returns the output of `ringfence status` for the only supervisor.
fn status(state: &TempDir) -> Value {
    let mut command = Command::new(BINARY);
    let output =
        command.args(["status", "--json"]).env("RINGFENCE_STATE_DIR", state.path()).output().expect("command runs");
    let found: Value = serde_json::from_slice(&output.stdout).expect("valid JSON");
    found.as_array().and_then(|found| found.first()).cloned().unwrap_or_default()
}

/// Returns the process ID of the worker once it is healthy.
pub(crate) fn worker(state: &TempDir) -> u32 {
    let mut found = None;
    wait_until("there is no healthy worker", || {
        let status = status(state);
        found = status["worker_pid"].as_u64().filter(|_| status["health"] == "healthy");
        found.is_some()
    });
    found.and_then(|pid| u32::try_from(pid).ok()).expect("process ID")
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process");
    kill_process(pid, signal).expect("signal is sent");
}

/// A process that is stopped until this is dropped.
struct Stopped(u32);

impl Stopped {
    fn new(pid: u32) -> Self {
        signal(pid, Signal::STOP);
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, Signal::CONT);
    }
}

/// Returns every process that was started for a state directory, even if its parent has exited.
fn processes_of(state: &TempDir) -> Vec<u32> {
    let marker = state.path().as_os_str().as_encoded_bytes();
    let all = std::fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has_marker = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(marker.len()).any(|window| window == marker) && process::is_alive(*pid)
    };
    pids.filter(has_marker).collect()
}

/// Returns the processes of a state directory with all their descendants. Processes in sandboxes have another environment,
/// so they are found only through their ancestors, while those are alive.
fn process_tree(state: &TempDir) -> BTreeSet<u32> {
    let roots = processes_of(state);
    roots.iter().flat_map(|pid| process::descendants(*pid)).chain(roots.iter().copied()).collect()
}

/// Returns the same processes, and checks that a sandbox is among them.
fn process_tree_with_sandbox(state: &TempDir) -> BTreeSet<u32> {
    let process_tree = process_tree(state);
    let is_inside = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        numbers.is_some_and(|numbers| numbers.split_whitespace().count() > 1)
    };
    assert!(process_tree.iter().any(is_inside), "no sandbox among the processes: {process_tree:?}");
    process_tree
}

fn assert_ended(process_tree: &BTreeSet<u32>) {
    wait_until("processes remain", || !process_tree.iter().any(|pid| process::is_alive(*pid)));
}

/// Ends a supervisor and returns its exit code. Checks that it exits in time and that none of its processes remains.
pub(crate) fn end(server: Server) -> (Option<i32>, Arc<TempDir>) {
    end_after(server, |_| {})
}

/// Does the same as [`end`], and calls `action` between the signal and the exit.
fn end_after(mut server: Server, action: impl FnOnce(&Server)) -> (Option<i32>, Arc<TempDir>) {
    let (process_tree, start) = (process_tree(&server.state), Instant::now());
    signal(server.process.id(), Signal::TERM);
    action(&server);
    let code = server.process.wait().expect("wait for the process").code();
    assert!(start.elapsed() <= Duration::from_secs(10), "the exit took {:?}", start.elapsed());
    assert_ended(&process_tree);
    (code, Arc::clone(&server.state))
}

/// Runs a supervisor that fails. Returns the exit code and the last line of its output.
fn failed_run(command: &mut Command) -> (Option<i32>, Value) {
    let output = command.output().expect("command runs");
    let line = String::from_utf8_lossy(&output.stdout);
    let line = line.lines().last().unwrap_or_default();
    (output.status.code(), serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
}

#[test]
fn endpoint_is_reported_and_all_processes_end_with_the_supervisor() {
    let directory = tempfile::tempdir().expect("directory is created");
    let file = directory.path().join("endpoint");
    let options = ["--expect-tool", "execute_code", "--endpoint-file", file.to_str().expect("valid UTF-8")];
    let (server, line) = up(&options, &[("RINGFENCE_SESSIONS_POOL", "python=1")]);
    assert_eq!(line["pid"], server.process.id(), "{line}");
    assert!(line["tools"].as_array().is_some_and(|tools| tools.contains(&json!("execute_code"))), "{line}");
    let endpoint = line["endpoint"].as_str().expect("a string");
    assert_eq!(std::fs::read_to_string(&file).expect("file exists"), format!("{endpoint}\n"));
    let session = server.create_session("python", "x = 'preserved'");
    assert_eq!(server.execute(&session, "print(x)")["stdout"], "preserved\n");

    let running = status(&server.state);
    assert_eq!((&running["endpoint"], &running["restarts"]), (&line["endpoint"], &json!(0)), "{running}");
    let mut command = Command::new(BINARY);
    let output = command.arg("status").env("RINGFENCE_STATE_DIR", server.state.path()).output().expect("command runs");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(stdout.contains(endpoint) && stdout.contains("healthy"), "{stdout}");

    let address = server.address.clone();
    process_tree_with_sandbox(&server.state);
    let (code, state) = end(server);
    assert_eq!(code, Some(0));
    assert!(!file.exists(), "the endpoint file remains");
    assert!(std::net::TcpStream::connect(address).is_err(), "the port still accepts connections");
    assert_eq!(status(&state), Value::Null);
    assert_eq!(processes_of(&state), [0; 0], "processes remain");
    for name in ["launchers", "servers", "supervisors"] {
        assert_eq!(std::fs::read_dir(state.path().join(name)).expect("directory exists").count(), 0, "{name}");
    }
}

/// Whether a server refuses requests or connections because it shuts down.
fn is_shutting_down(address: &str) -> bool {
    let Ok(mut stream) = std::net::TcpStream::connect(address) else { return true };
    let request = format!("GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let mut response = String::new();
    let result = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut response));
    // The listening socket may be closed while the connection is in its queue.
    result.is_err() || !response.starts_with("HTTP/1.1 200")
}

#[test]
fn running_call_is_finished_before_exit() {
    let directory = tempfile::tempdir().expect("directory is created");
    let (server, _) = up(&[&format!("--volume={}:/shared:ro", directory.path().display())], &[]);
    let session = server.create_session("python", "import os, time");
    let code = "while not os.path.exists('/shared/release'): time.sleep(0.02)\nprint('done')";
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "execute_code",
        "arguments": {"code": code, "session_id": session}}});
    let mut stream = server.send("POST /mcp", &call.to_string());
    wait_until("the call does not start", || {
        let list = server.call("get_sessions", &json!({"session_id": session}));
        list["result"]["structuredContent"]["sessions"][0]["status"] == "busy"
    });
    let (code, state) = end_after(server, |server| {
        wait_until("the worker does not shut down", || is_shutting_down(&server.address));
        std::fs::write(directory.path().join("release"), "").expect("file is written");
    });
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("response is read");
    assert!(response.contains("done\\n"), "{response}");
    assert_eq!((code, processes_of(&state)), (Some(0), Vec::new()));
}

#[test]
fn failed_start_of_a_worker_is_reported_with_its_reason() {
    let state = tempfile::tempdir().expect("directory is created");
    let file = state.path().join("file");
    std::fs::write(&file, "").expect("file is written");
    let (code, line) = failed_run(command(&state, &[], &[]).env("RINGFENCE_STATE_DIR", &file));
    assert_eq!(code, Some(75), "{line}");
    assert_eq!((&line["reason"], &line["count"], &line["exit_code"]), (&json!("exited"), &json!(0), &json!(125)));
    assert!(line["endpoint"].as_str().is_some_and(|endpoint| endpoint.starts_with("http://127.0.0.1:")), "{line}");
    let stderr = line["stderr"].as_array().expect("a list").iter().filter_map(Value::as_str).collect::<Vec<_>>();
    assert!(stderr.iter().any(|line| line.starts_with("error: ")), "{stderr:?}");
}

#[test]
fn missing_expected_tool_is_named() {
    let state = tempfile::tempdir().expect("directory is created");
    let options = ["--expect-tool", "execute_code", "--expect-tool", "fly", "--preflight-timeout-ms", "8000"];
    let (code, line) = failed_run(&mut command(&state, &options, &[]));
    assert_eq!((code, &line["reason"]), (Some(75), &json!("probe failed")), "{line}");
    assert!(line["error"].as_str().is_some_and(|error| error.ends_with("tools are missing: `fly`")), "{line}");
    assert_eq!(processes_of(&state), [0; 0]);
}

#[test]
fn listening_on_all_interfaces_needs_a_token_and_probes_send_it() {
    let state = tempfile::tempdir().expect("directory is created");
    let output = command(&state, &["--host", "0.0.0.0"], &[]).stderr(Stdio::piped()).output().expect("command runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{stderr}");
    assert!(stderr.contains("without a token"), "{stderr}");
    let (server, line) = up(&["--host", "0.0.0.0"], &[("RINGFENCE_AUTH_TOKEN", "a-long-secret-for-all")]);
    assert_eq!(line["endpoint"], format!("http://{}/mcp", server.address), "{line}");
    assert!(server.address.starts_with("127.0.0.1:"), "{line}");
    assert_eq!(server.http("POST /mcp", &format!("Host: {}\r\n", server.address), "{}").0, 401);
}

#[test]
fn supervisor_can_be_embedded_in_a_program() {
    let state = tempfile::tempdir().expect("directory is created");
    let mut options = ringfence::Options::new(BINARY);
    options.variables = vec![("RINGFENCE_STATE_DIR".into(), state.path().into())];
    options.state_directory = Some(state.path().into());
    options.expected_tools = vec!["execute_code".into()];
    let supervisor = ringfence::Supervisor::start(options).expect("process starts");
    let endpoint = supervisor.endpoint().to_owned();
    signal(supervisor.status().worker_pid.expect("a worker"), Signal::KILL);
    wait_until("the worker is not replaced", || {
        supervisor.restart_count() == 1 && supervisor.health() == ringfence::Health::Healthy
    });
    assert_eq!(supervisor.endpoint(), endpoint);
    assert_eq!(supervisor.stop(), ringfence::Ending::Stopped);
    // The environment of this process does not contain the directory.
    assert_eq!(processes_of(&state), [0; 0]);
}
