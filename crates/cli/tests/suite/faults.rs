//! Processes of every kind are killed during a call: the caller gets an error, other sessions are not affected, and the
//! next call works.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use ringfence_testkit::{Server, User, process, repository_path, wait_until};
use serde_json::{Value, json};

use crate::BINARY;

/// A call that runs until it is ended. A file in the workspace identifies its session.
struct RunningCall {
    session: String,
    response: JoinHandle<String>,
    /// The processes of the sandbox, the init first.
    processes: Vec<u32>,
}

fn start_long_call(server: &Server, mark: &str) -> RunningCall {
    let session = server.create_session("python", &format!("x = 1; f = open('{mark}', 'w').close()"));
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "execute_code",
        "arguments": {"code": "import time; time.sleep(100)", "session_id": session, "timeout": 110}}});
    let mut stream = server.send("POST /mcp", &call.to_string());
    let response = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = std::io::Read::read_to_string(&mut stream, &mut text);
        text
    });
    wait_until("the call does not start", || {
        let response = server.call("get_sessions", &json!({"session_id": session}));
        response["result"]["structuredContent"]["sessions"][0]["status"] == "busy"
    });
    let has_mark = |pid: &u32| Path::new(&format!("/proc/{pid}/root/workspace/{mark}")).exists();
    let mut processes: Vec<u32> = process::descendants(server.process.id()).into_iter().filter(has_mark).collect();
    processes.sort_by_key(|pid| inner_pid(*pid));
    assert_eq!((processes.len(), inner_pid(processes[0])), (2, 1), "the sandbox has an init and a kernel");
    RunningCall { session, response, processes }
}

/// Returns the PID in the innermost PID namespace.
fn inner_pid(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    numbers.split_whitespace().next_back().and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a valid PID");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("send SIGKILL");
}

/// Waits for the response to a call.
fn wait_for_response(caller: JoinHandle<String>) -> Value {
    let response = caller.join().expect("join the caller");
    let body = response.split("\r\n\r\n").nth(1).unwrap_or_else(|| panic!("no response body: {response}"));
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {response}"))
}

fn text_of(response: &Value) -> String {
    let items = response["result"]["content"].as_array().into_iter().flatten();
    items.filter_map(|item| item["text"].as_str()).collect::<Vec<_>>().join("\n")
}

#[test]
fn killed_kernel_is_replaced_and_files_remain() {
    let server = Server::start(&[], &[]);
    let other_session = server.create_session("python", "y = 'unchanged'");
    let running = start_long_call(&server, "kernel-is-killed");
    kill(running.processes[1]);
    let response = wait_for_response(running.response);
    assert_eq!(
        (&response["result"]["isError"], text_of(&response).contains("state is lost")),
        (&json!(true), true),
        "{response}"
    );
    let next =
        server.execute(&running.session, "import os; print('x' in globals(), os.path.exists('kernel-is-killed'))");
    assert_eq!(next["stdout"], "False True\n", "variables are lost, files remain");
    assert_eq!(server.execute(&other_session, "print(y)")["stdout"], "unchanged\n");
}

#[test]
fn kernel_killed_between_calls_is_reported_once() {
    let server = Server::start(&[], &[]);
    for during_command in [false, true] {
        let mark = format!("killed-at-rest-{during_command}");
        let session = server.create_session("python", &format!("x = 1; f = open('{mark}', 'w').close()"));
        let has_mark = |pid: &u32| Path::new(&format!("/proc/{pid}/root/workspace/{mark}")).exists();
        let kernel =
            process::descendants(server.process.id()).into_iter().find(|pid| has_mark(pid) && inner_pid(*pid) > 1);
        let kernel = kernel.expect("find the kernel");
        let mut first_response = String::new();
        if during_command {
            // The command's response then reports the end of the kernel.
            let command =
                json!({"command": "touch ready; while [ ! -e go ]; do sleep 0.01; done", "session_id": session});
            let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                "params": {"name": "execute_command", "arguments": command}});
            let mut stream = server.send("POST /mcp", &call.to_string());
            let workspace = format!("/proc/{kernel}/root/workspace");
            wait_until("the command does not start", || Path::new(&format!("{workspace}/ready")).exists());
            kill(kernel);
            wait_until("the kernel is still alive", || !process::is_alive(kernel));
            let go = json!({"session_id": session, "path": "go", "content": ""});
            assert!(server.call("write_file", &go)["result"]["isError"] != true);
            std::io::Read::read_to_string(&mut stream, &mut first_response).expect("read the response");
        } else {
            kill(kernel);
            wait_until("the kernel is still alive", || !process::is_alive(kernel));
        }
        let next = || server.call("execute_code", &json!({"code": "print('x' in globals())", "session_id": session}));
        if !during_command {
            first_response = text_of(&next());
        }
        assert!(first_response.contains("state is lost"), "{first_response}");
        let response = next();
        assert_eq!(response["result"]["structuredContent"]["stdout"], "False\n", "{response}");
        assert!(!text_of(&response).contains("state is lost"), "the loss is reported more than once: {response}");
    }
}

#[test]
fn fault_suite_passes() {
    let mut suite = std::process::Command::new(repository_path("scripts/faults"));
    suite.arg(crate::BINARY).args(["--rounds", "1", "--callers", "2", "--minutes", "0.9"]);
    for fault in ["kill -9 kernel", "kill -9 worker", "too many clients", "damaged database"] {
        suite.args(["--only", fault]);
    }
    let output = suite.output().expect("run the fault suite");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(stdout.lines().filter(|line| line.contains(" survived ")).count(), 4, "{stdout}");
    assert!(stdout.contains("nothing is left behind"), "{stdout}");
}

#[test]
fn fault_suite_ends_at_its_time_limit() {
    let mut suite = std::process::Command::new(repository_path("scripts/faults"));
    suite.arg(crate::BINARY).args(["--rounds", "1000000", "--callers", "1", "--minutes", "0.05"]);
    let output = suite.args(["--only", "kill -9 kernel"]).output().expect("run the fault suite");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{stdout}\n{stderr}");
    assert!(stderr.contains("the time limit is over"), "{stdout}\n{stderr}");
    assert!(stdout.contains("nothing is left behind"), "{stdout}\n{stderr}");
}

#[test]
fn killed_init_is_replaced_by_new_sandbox() {
    let server = Server::start(&[], &[]);
    let other_session = server.create_session("python", "y = 'unchanged'");
    let running = start_long_call(&server, "init-is-killed");
    kill(running.processes[0]);
    let response = wait_for_response(running.response);
    assert_eq!(
        (&response["result"]["isError"], text_of(&response).contains("are lost")),
        (&json!(true), true),
        "{response}"
    );
    let arguments = json!({"code": "import os; print('x' in globals(), sorted(set(os.listdir()) - {'.venv'}))", "session_id": running.session});
    let next = server.call("execute_code", &arguments);
    assert_eq!(next["result"]["structuredContent"]["stdout"], "False []\n", "{next}");
    assert!(text_of(&next).contains("replaced by a new one"), "{next}");
    let after = server.call("execute_code", &arguments);
    assert!(!text_of(&after).contains("replaced by a new one"), "the loss is reported more than once: {after}");
    assert_eq!(server.execute(&other_session, "print(y)")["stdout"], "unchanged\n");
}

#[test]
fn killed_zygote_is_replaced_without_disturbing_sessions() {
    let server = Server::start(&[], &[]);
    let zygote = || {
        let is_python = |pid: &u32| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.starts_with("python") && inner_pid(*pid) == *pid
        };
        process::descendants(server.process.id()).into_iter().find(is_python)
    };
    let running = start_long_call(&server, "zygote-is-killed");
    wait_until("no zygote starts", || zygote().is_some());
    let first = zygote().expect("find the zygote");
    kill(first);
    wait_until("the zygote is still alive", || !process::is_alive(first));
    // More sessions than the pool has ready, so that some are created without the pool.
    let sessions: Vec<String> =
        (0..8).map(|number| server.create_session("python", &format!("z = {number}"))).collect();
    for (number, session) in sessions.iter().enumerate() {
        assert_eq!(server.execute(session, "print(z)")["stdout"], format!("{number}\n"));
    }
    wait_until("the zygote is not replaced", || zygote().is_some_and(|current| current != first));
    assert!(running.processes.iter().all(|pid| process::is_alive(*pid)), "the running call was disturbed");
    let stopped = server.call("stop_session", &json!({"session_id": running.session}));
    assert_eq!(stopped["result"]["structuredContent"]["was_running"], true, "{stopped}");
    wait_for_response(running.response);
}

#[test]
fn killed_launcher_is_replaced() {
    let server = Server::start(&[], &[]);
    let running = start_long_call(&server, "launcher-is-killed");
    let launcher = launcher_of(&server);
    kill(launcher);
    let response = wait_for_response(running.response);
    assert_eq!(
        (&response["result"]["isError"], text_of(&response).contains("are lost")),
        (&json!(true), true),
        "{response}"
    );
    let next = server.call("execute_code", &json!({"code": "print('x' in globals())", "session_id": running.session}));
    assert_eq!(next["result"]["structuredContent"]["stdout"], "False\n", "{next}");
    assert!(text_of(&next).contains("replaced by a new one"), "{next}");
    wait_until("the launcher stays a zombie", || !Path::new(&format!("/proc/{launcher}")).exists());
}

#[test]
fn unresponsive_launcher_does_not_block_next_server() {
    let server = Server::start(&[], &[("RINGFENCE_SESSIONS_LEASE_S", "1")]);
    let session = server.create_session("python", "x = 1");
    let launcher = launcher_of(&server);
    let stopped = StoppedProcess::new(launcher);
    let state = server.kill();
    let next = with_timeout(move || Server::start_in(User::Root, state, &[], &[]));
    let refused = next.call("execute_code", &json!({"code": "x", "session_id": session}));
    assert_eq!(refused["error"]["data"]["error_code"], "SESSION_NOT_FOUND", "{refused}");
    next.create_session("python", "x = 1");
    drop(stopped);
    wait_until("the launcher outlives its lease", || !process::is_alive(launcher));
}

#[test]
fn sessions_keep_working_while_launcher_is_unresponsive() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "x = 'unchanged'");
    let stopped = StoppedProcess::new(launcher_of(&server));
    let server = with_timeout(move || {
        assert_eq!(server.execute(&session, "print(x)")["stdout"], "unchanged\n");
        let written = server.call("write_file", &json!({"session_id": session, "path": "a", "content": "b"}));
        assert_eq!(written["result"]["isError"], false, "{written}");
        let command = json!({"command": "sleep 60 & cat a", "session_id": session});
        let response = server.call("execute_command", &command);
        assert_eq!(response["result"]["structuredContent"]["stdout"], "b", "{response}");
        server
    });
    drop(stopped);
    drop(server);
}

#[test]
fn launcher_that_fails_to_start_leaves_no_zombie() {
    let server = Server::start(&[], &[]);
    let sockets = server.state.path().join("launchers");
    // The server has started a launcher to check that it can create sandboxes.
    kill(launcher_of(&server));
    std::fs::remove_dir_all(&sockets).expect("remove the directory");
    for _ in 0..3 {
        let refused = server.call("execute_code", &json!({"code": "1"}));
        assert!(refused["error"]["data"]["error_code"].is_string(), "{refused}");
    }
    wait_until("a child process is left", || process::descendants(server.process.id()).is_empty());
    std::fs::create_dir(&sockets).expect("create the directory");
    server.create_session("python", "x = 1");
}

/// The path of the program is not executed again: after an upgrade has replaced the file, guests may be able to write
/// its directory.
#[test]
fn replaced_program_is_not_executed() {
    let directory = tempfile::tempdir().expect("create a directory");
    let [program, planted, marker] = ["ringfence", "planted", "marker"].map(|name| directory.path().join(name));
    std::fs::copy(BINARY, &program).expect("copy the program");
    let server = Server::start_by(Command::new(&program));
    std::fs::write(&planted, format!("#!/bin/sh\ntouch {}\n", marker.display())).expect("write the script");
    std::fs::set_permissions(&planted, std::fs::Permissions::from_mode(0o755)).expect("make the script executable");
    std::fs::rename(&planted, &program).expect("replace the program");
    let launcher = launcher_of(&server);
    kill(launcher);
    wait_until("the launcher is still alive", || !process::is_alive(launcher));
    let mut session = String::new();
    wait_until("no new launcher starts", || {
        let response = server.call("execute_code", &json!({"code": "1"}));
        session = response["result"]["structuredContent"]["session_id"].as_str().unwrap_or_default().to_owned();
        !session.is_empty()
    });
    assert!(!marker.exists(), "the path was executed");
    let name =
        std::fs::read_to_string(format!("/proc/{}/comm", launcher_of(&server))).expect("read the name of the launcher");
    assert_eq!(name, "ringfence\n");
}

/// A process stopped by SIGSTOP, and continued on drop.
struct StoppedProcess(rustix::process::Pid);

impl StoppedProcess {
    fn new(pid: u32) -> Self {
        let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a valid PID");
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("send SIGSTOP");
        Self(pid)
    }
}

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::CONT);
    }
}

/// Runs work that would hang if the behaviour under test were broken.
fn with_timeout<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    done.recv_timeout(Duration::from_secs(20)).expect("the work ends in time")
}

fn launcher_of(server: &Server) -> u32 {
    let launcher =
        process::descendants(server.process.id()).into_iter().find(|pid| parent_of(*pid) == server.process.id());
    launcher.expect("find the launcher")
}

fn parent_of(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse().ok()).unwrap_or(0)
}
