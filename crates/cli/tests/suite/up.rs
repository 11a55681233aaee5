//! `ringfence up`: what it tells, what it survives, and what its end leaves.

mod kills;
mod service;
mod stops;
mod together;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_testkit::{Server, process, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::BINARY;

/// A supervisor on a port of its own, and the line that it has told.
pub(crate) fn up(options: &[&str], variables: &[(&str, &str)]) -> (Server, Value) {
    up_in(Arc::new(tempfile::tempdir().expect("a directory")), options, variables)
}

pub(crate) fn up_in(state: Arc<TempDir>, options: &[&str], variables: &[(&str, &str)]) -> (Server, Value) {
    listening(command(&state, options, variables), state)
}

/// Starts it, and gives it with what it says of where it listens.
fn listening(mut command: Command, state: Arc<TempDir>) -> (Server, Value) {
    let mut process = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(process.stdout.take().expect("stdout is piped")).lines();
    let line = lines.next().expect("it says where it listens").expect("it is text");
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

/// What `ringfence status` says of the only supervisor.
fn status(state: &TempDir) -> Value {
    let mut command = Command::new(BINARY);
    let output = command.args(["status", "--json"]).env("RINGFENCE_STATE_DIR", state.path()).output().expect("it runs");
    let found: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    found.as_array().and_then(|found| found.first()).cloned().unwrap_or_default()
}

pub(crate) fn worker(state: &TempDir) -> u32 {
    let mut found = None;
    wait_until("there is no healthy worker", || {
        let status = status(state);
        found = status["worker_pid"].as_u64().filter(|_| status["health"] == "healthy");
        found.is_some()
    });
    found.and_then(|pid| u32::try_from(pid).ok()).expect("it was found")
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process");
    kill_process(pid, signal).expect("it can be signalled");
}

/// A process that stands still until this is dropped.
struct Halted(u32);

impl Halted {
    fn new(pid: u32) -> Self {
        signal(pid, Signal::STOP);
        Self(pid)
    }
}

impl Drop for Halted {
    fn drop(&mut self) {
        signal(self.0, Signal::CONT);
    }
}

/// Every process that was started for a state directory, whoever its parent is now.
fn processes_of(state: &TempDir) -> Vec<u32> {
    let mark = state.path().as_os_str().as_encoded_bytes();
    let all = std::fs::read_dir("/proc").expect("it is there").flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_ours = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(mark.len()).any(|window| window == mark) && process::is_alive(*pid)
    };
    numbers.filter(is_ours).collect()
}

/// The same with all that those have started. What runs in a sandbox has other variables, and is found only by those
/// who have started it: so while they live.
fn family(state: &TempDir) -> BTreeSet<u32> {
    let named = processes_of(state);
    named.iter().flat_map(|pid| process::descendants(*pid)).chain(named.iter().copied()).collect()
}

/// A family with a sandbox in it.
fn family_with_sandbox(state: &TempDir) -> BTreeSet<u32> {
    let family = family(state);
    let is_inside = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        numbers.is_some_and(|numbers| numbers.split_whitespace().count() > 1)
    };
    assert!(family.iter().any(is_inside), "no sandbox is seen: {family:?}");
    family
}

fn assert_gone(family: &BTreeSet<u32>) {
    wait_until("processes are left", || !family.iter().any(|pid| process::is_alive(*pid)));
}

/// Nothing of it is left then. It never takes longer than it says.
pub(crate) fn end(mut server: Server) -> (Option<i32>, Arc<TempDir>) {
    let (family, asked) = (family(&server.state), Instant::now());
    signal(server.process.id(), Signal::TERM);
    let code = server.process.wait().expect("it is ours").code();
    assert!(asked.elapsed() <= Duration::from_secs(10), "it took {:?}", asked.elapsed());
    assert_gone(&family);
    (code, Arc::clone(&server.state))
}

/// Runs it until it gives up; gives the exit code and what it has told.
fn given_up(command: &mut Command) -> (Option<i32>, Value) {
    let output = command.output().expect("it runs");
    let line = String::from_utf8_lossy(&output.stdout);
    let line = line.lines().last().unwrap_or_default();
    (output.status.code(), serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
}

#[test]
fn the_endpoint_is_told_and_nothing_outlives_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("endpoint");
    let options = ["--expect-tool", "execute_code", "--endpoint-file", file.to_str().expect("it is text")];
    let (server, line) = up(&options, &[("RINGFENCE_SESSIONS_POOL", "python=1")]);
    assert_eq!(line["pid"], server.process.id(), "{line}");
    assert!(line["tools"].as_array().is_some_and(|tools| tools.contains(&json!("execute_code"))), "{line}");
    let endpoint = line["endpoint"].as_str().expect("it is text");
    assert_eq!(std::fs::read_to_string(&file).expect("it is there"), format!("{endpoint}\n"));
    let session = server.create_session("python", "x = 'kept'");
    assert_eq!(server.execute(&session, "print(x)")["stdout"], "kept\n");

    let told = status(&server.state);
    assert_eq!((&told["endpoint"], &told["restarts"]), (&line["endpoint"], &json!(0)), "{told}");
    let mut shown = Command::new(BINARY);
    let shown = shown.arg("status").env("RINGFENCE_STATE_DIR", server.state.path()).output().expect("it runs");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains(endpoint) && shown.contains("healthy"), "{shown}");

    let address = server.address.clone();
    family_with_sandbox(&server.state);
    let (code, state) = end(server);
    assert_eq!(code, Some(0));
    assert!(!file.exists(), "the endpoint is still named");
    assert!(std::net::TcpStream::connect(address).is_err(), "somebody listens");
    assert_eq!(status(&state), Value::Null);
    assert_eq!(processes_of(&state), [0; 0], "processes are left");
    for left in ["launchers", "servers", "supervisors"] {
        assert_eq!(std::fs::read_dir(state.path().join(left)).expect("it is there").count(), 0, "{left}");
    }
}

#[test]
fn a_call_under_way_is_finished_before_the_end() {
    let (server, _) = up(&[], &[]);
    let session = server.create_session("python", "import time");
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "execute_code",
        "arguments": {"code": "time.sleep(1.5); print('done')", "session_id": session}}});
    let mut stream = server.send("POST /mcp", &call.to_string());
    wait_until("the call does not start", || {
        let told = server.call("get_sessions", &json!({"session_id": session}));
        told["result"]["structuredContent"]["sessions"][0]["status"] == "busy"
    });
    let (code, state) = end(server);
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).expect("it is answered");
    assert!(answer.contains("done\\n"), "{answer}");
    assert_eq!((code, processes_of(&state)), (Some(0), Vec::new()));
}

#[test]
fn a_worker_that_cannot_start_is_told_with_its_reason() {
    let state = tempfile::tempdir().expect("a directory");
    let file = state.path().join("file");
    std::fs::write(&file, "").expect("it is written");
    let (code, line) = given_up(command(&state, &[], &[]).env("RINGFENCE_STATE_DIR", &file));
    assert_eq!(code, Some(75), "{line}");
    assert_eq!((&line["reason"], &line["count"], &line["exit_code"]), (&json!("exited"), &json!(0), &json!(125)));
    assert!(line["endpoint"].as_str().is_some_and(|endpoint| endpoint.starts_with("http://127.0.0.1:")), "{line}");
    let said = line["stderr"].as_array().expect("a list").iter().filter_map(Value::as_str).collect::<Vec<_>>();
    assert!(said.iter().any(|line| line.starts_with("error: ")), "{said:?}");
}

#[test]
fn an_expected_tool_that_is_missing_is_named() {
    let state = tempfile::tempdir().expect("a directory");
    let options = ["--expect-tool", "execute_code", "--expect-tool", "fly", "--preflight-timeout-ms", "8000"];
    let (code, line) = given_up(&mut command(&state, &options, &[]));
    assert_eq!((code, &line["reason"]), (Some(75), &json!("probe failed")), "{line}");
    assert!(line["error"].as_str().is_some_and(|error| error.ends_with("tools are missing: `fly`")), "{line}");
    assert_eq!(processes_of(&state), [0; 0]);
}

#[test]
fn an_open_address_needs_a_token_and_the_probes_have_it() {
    let state = tempfile::tempdir().expect("a directory");
    let output = command(&state, &["--host", "0.0.0.0"], &[]).stderr(Stdio::piped()).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("without a token"), "{said}");
    let (server, line) = up(&["--host", "0.0.0.0"], &[("RINGFENCE_AUTH_TOKEN", "a-long-secret-for-all")]);
    assert_eq!(line["endpoint"], format!("http://{}/mcp", server.address), "{line}");
    assert!(server.address.starts_with("127.0.0.1:"), "{line}");
    assert_eq!(server.http("POST /mcp", &format!("Host: {}\r\n", server.address), "{}").0, 401);
}

#[test]
fn it_is_embedded_in_a_program() {
    let state = tempfile::tempdir().expect("a directory");
    let mut options = ringfence::Options::new(BINARY);
    options.variables = vec![("RINGFENCE_STATE_DIR".into(), state.path().into())];
    options.state_directory = Some(state.path().into());
    options.expected_tools = vec!["execute_code".into()];
    let supervisor = ringfence::Supervisor::start(options).expect("it starts");
    let endpoint = supervisor.endpoint().to_owned();
    signal(supervisor.status().worker_pid.expect("it has one"), Signal::KILL);
    wait_until("it is not replaced", || {
        supervisor.restart_count() == 1 && supervisor.health() == ringfence::Health::Healthy
    });
    assert_eq!(supervisor.endpoint(), endpoint);
    assert_eq!(supervisor.stop(), ringfence::Ending::Stopped);
    // This process has the directory in no variable of its own.
    assert_eq!(processes_of(&state), [0; 0]);
}
