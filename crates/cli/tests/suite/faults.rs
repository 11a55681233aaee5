//! Every kind of process killed in the middle of a call: the caller is told, nobody else notices, and the next call
//! works.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use ringfence_testkit::{Server, User, process, repository_path, wait_until};
use serde_json::{Value, json};

use crate::BINARY;

/// A call that runs until it is ended, in a session that can be told from others by a file.
struct Running {
    session: String,
    answer: JoinHandle<String>,
    /// The processes of its sandbox, the init first.
    processes: Vec<u32>,
}

fn run_for_long(server: &Server, mark: &str) -> Running {
    let session = server.create_session("python", &format!("x = 1; f = open('{mark}', 'w').close()"));
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "execute_code",
        "arguments": {"code": "import time; time.sleep(100)", "session_id": session, "timeout": 110}}});
    let mut stream = server.send("POST /mcp", &call.to_string());
    let answer = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = std::io::Read::read_to_string(&mut stream, &mut text);
        text
    });
    wait_until("the call does not start", || {
        let told = server.call("get_sessions", &json!({"session_id": session}));
        told["result"]["structuredContent"]["sessions"][0]["status"] == "busy"
    });
    let has_mark = |pid: &u32| Path::new(&format!("/proc/{pid}/root/workspace/{mark}")).exists();
    let mut processes: Vec<u32> = process::descendants(server.process.id()).into_iter().filter(has_mark).collect();
    processes.sort_by_key(|pid| inner_pid(*pid));
    assert_eq!((processes.len(), inner_pid(processes[0])), (2, 1), "an init and a kernel");
    Running { session, answer, processes }
}

/// Its number in the innermost namespace.
fn inner_pid(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    numbers.split_whitespace().next_back().and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it can be killed");
}

/// What the caller of a call that was under way has got.
fn told(running: JoinHandle<String>) -> Value {
    let answer = running.join().expect("the caller lives");
    let body = answer.split("\r\n\r\n").nth(1).unwrap_or_else(|| panic!("no answer: {answer}"));
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

fn text_of(answer: &Value) -> String {
    let items = answer["result"]["content"].as_array().into_iter().flatten();
    items.filter_map(|item| item["text"].as_str()).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_kernel_is_killed() {
    let server = Server::start(&[], &[]);
    let other = server.create_session("python", "y = 'kept'");
    let running = run_for_long(&server, "kernel-is-killed");
    kill(running.processes[1]);
    let answer = told(running.answer);
    assert_eq!(
        (&answer["result"]["isError"], text_of(&answer).contains("state is lost")),
        (&json!(true), true),
        "{answer}"
    );
    let next =
        server.execute(&running.session, "import os; print('x' in globals(), os.path.exists('kernel-is-killed'))");
    assert_eq!(next["stdout"], "False True\n", "variables are gone, files are not");
    assert_eq!(server.execute(&other, "print(y)")["stdout"], "kept\n");
}

#[test]
fn a_kernel_is_killed_between_calls() {
    let server = Server::start(&[], &[]);
    for during_command in [false, true] {
        let mark = format!("killed-at-rest-{during_command}");
        let session = server.create_session("python", &format!("x = 1; f = open('{mark}', 'w').close()"));
        let has_mark = |pid: &u32| Path::new(&format!("/proc/{pid}/root/workspace/{mark}")).exists();
        let kernel =
            process::descendants(server.process.id()).into_iter().find(|pid| has_mark(pid) && inner_pid(*pid) > 1);
        let kernel = kernel.expect("a kernel");
        let mut told = String::new();
        if during_command {
            // Its end is then told to whoever waits for something else.
            let command =
                json!({"command": "touch ready; while [ ! -e go ]; do sleep 0.01; done", "session_id": session});
            let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                "params": {"name": "execute_command", "arguments": command}});
            let mut stream = server.send("POST /mcp", &call.to_string());
            let workspace = format!("/proc/{kernel}/root/workspace");
            wait_until("it does not start", || Path::new(&format!("{workspace}/ready")).exists());
            kill(kernel);
            wait_until("it lives", || !process::is_alive(kernel));
            let go = json!({"session_id": session, "path": "go", "content": ""});
            assert!(server.call("write_file", &go)["result"]["isError"] != true);
            std::io::Read::read_to_string(&mut stream, &mut told).expect("it answers");
        } else {
            kill(kernel);
            wait_until("it lives", || !process::is_alive(kernel));
        }
        let next = || server.call("execute_code", &json!({"code": "print('x' in globals())", "session_id": session}));
        if !during_command {
            told = text_of(&next());
        }
        assert!(told.contains("state is lost"), "{told}");
        let answer = next();
        assert_eq!(answer["result"]["structuredContent"]["stdout"], "False\n", "{answer}");
        assert!(!text_of(&answer).contains("state is lost"), "it is told once: {answer}");
    }
}

#[test]
fn the_fault_suite_runs() {
    let mut suite = std::process::Command::new(repository_path("scripts/faults"));
    suite.arg(crate::BINARY).args(["--rounds", "1", "--callers", "2", "--minutes", "0.9"]);
    for fault in ["kill -9 kernel", "kill -9 worker", "too many clients", "damaged database"] {
        suite.args(["--only", fault]);
    }
    let output = suite.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.lines().filter(|line| line.contains(" survived ")).count(), 4, "{said}");
    assert!(said.contains("nothing is left behind"), "{said}");
}

#[test]
fn the_fault_suite_ends_when_its_time_is_up() {
    let mut suite = std::process::Command::new(repository_path("scripts/faults"));
    suite.arg(crate::BINARY).args(["--rounds", "1000000", "--callers", "1", "--minutes", "0.05"]);
    let output = suite.args(["--only", "kill -9 kernel"]).output().expect("it runs");
    let (said, complaints) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{said}\n{complaints}");
    assert!(complaints.contains("the time limit is over"), "{said}\n{complaints}");
    assert!(said.contains("nothing is left behind"), "{said}\n{complaints}");
}

#[test]
fn an_init_is_killed() {
    let server = Server::start(&[], &[]);
    let other = server.create_session("python", "y = 'kept'");
    let running = run_for_long(&server, "init-is-killed");
    kill(running.processes[0]);
    let answer = told(running.answer);
    assert_eq!((&answer["result"]["isError"], text_of(&answer).contains("are lost")), (&json!(true), true), "{answer}");
    let arguments = json!({"code": "import os; print('x' in globals(), os.listdir())", "session_id": running.session});
    let next = server.call("execute_code", &arguments);
    assert_eq!(next["result"]["structuredContent"]["stdout"], "False []\n", "{next}");
    assert!(text_of(&next).contains("replaced by a new one"), "{next}");
    let after = server.call("execute_code", &arguments);
    assert!(!text_of(&after).contains("replaced by a new one"), "it is told once: {after}");
    assert_eq!(server.execute(&other, "print(y)")["stdout"], "kept\n");
}

#[test]
fn a_zygote_is_killed() {
    let server = Server::start(&[], &[]);
    let zygote = || {
        let is_python = |pid: &u32| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.starts_with("python") && inner_pid(*pid) == *pid
        };
        process::descendants(server.process.id()).into_iter().find(is_python)
    };
    let running = run_for_long(&server, "zygote-is-killed");
    wait_until("there is no zygote", || zygote().is_some());
    let first = zygote().expect("a zygote");
    kill(first);
    wait_until("it lives", || !process::is_alive(first));
    // More than are ready in the pool, so that some are made without it.
    let sessions: Vec<String> =
        (0..8).map(|number| server.create_session("python", &format!("z = {number}"))).collect();
    for (number, session) in sessions.iter().enumerate() {
        assert_eq!(server.execute(session, "print(z)")["stdout"], format!("{number}\n"));
    }
    wait_until("no other takes its place", || zygote().is_some_and(|other| other != first));
    assert!(running.processes.iter().all(|pid| process::is_alive(*pid)), "whoever runs is not disturbed");
    let stopped = server.call("stop_session", &json!({"session_id": running.session}));
    assert_eq!(stopped["result"]["structuredContent"]["was_running"], true, "{stopped}");
    told(running.answer);
}

#[test]
fn a_launcher_is_killed() {
    let server = Server::start(&[], &[]);
    let running = run_for_long(&server, "launcher-is-killed");
    let launcher = launcher_of(&server);
    kill(launcher);
    let answer = told(running.answer);
    assert_eq!((&answer["result"]["isError"], text_of(&answer).contains("are lost")), (&json!(true), true), "{answer}");
    let next = server.call("execute_code", &json!({"code": "print('x' in globals())", "session_id": running.session}));
    assert_eq!(next["result"]["structuredContent"]["stdout"], "False\n", "{next}");
    assert!(text_of(&next).contains("replaced by a new one"), "{next}");
    wait_until("it stays a zombie", || !Path::new(&format!("/proc/{launcher}")).exists());
}

#[test]
fn a_launcher_that_does_not_answer_keeps_no_next_server_from_serving() {
    let server = Server::start(&[], &[("RINGFENCE_SESSIONS_LEASE_S", "1")]);
    let session = server.create_session("python", "x = 1");
    let launcher = launcher_of(&server);
    let stopped = Stopped::new(launcher);
    let state = server.kill();
    let next = in_time(move || Server::start_in(User::Root, state, &[], &[]));
    let refused = next.call("execute_code", &json!({"code": "x", "session_id": session}));
    assert_eq!(refused["error"]["data"]["error_code"], "SESSION_NOT_FOUND", "{refused}");
    next.create_session("python", "x = 1");
    drop(stopped);
    wait_until("its lease does not end it", || !process::is_alive(launcher));
}

#[test]
fn a_launcher_that_does_not_answer_costs_its_sessions_nothing_that_they_have() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "x = 'kept'");
    let stopped = Stopped::new(launcher_of(&server));
    let server = in_time(move || {
        assert_eq!(server.execute(&session, "print(x)")["stdout"], "kept\n");
        let written = server.call("write_file", &json!({"session_id": session, "path": "a", "content": "b"}));
        assert_eq!(written["result"]["isError"], false, "{written}");
        let left = json!({"command": "sleep 60 & cat a", "session_id": session});
        let answer = server.call("execute_command", &left);
        assert_eq!(answer["result"]["structuredContent"]["stdout"], "b", "{answer}");
        server
    });
    drop(stopped);
    drop(server);
}

#[test]
fn a_launcher_that_cannot_begin_leaves_nothing() {
    let server = Server::start(&[], &[]);
    let doors = server.state.path().join("launchers");
    // The server has started one to prove that sandboxes can be made.
    kill(launcher_of(&server));
    std::fs::remove_dir_all(&doors).expect("it is ours");
    for _ in 0..3 {
        let refused = server.call("execute_code", &json!({"code": "1"}));
        assert!(refused["error"]["data"]["error_code"].is_string(), "{refused}");
    }
    wait_until("a zombie is left", || process::descendants(server.process.id()).is_empty());
    std::fs::create_dir(&doors).expect("it is ours");
    server.create_session("python", "x = 1");
}

/// A guest may write the directory of the program after an upgrade has replaced its file, so the path is not executed.
#[test]
fn a_replaced_program_is_not_executed() {
    let directory = tempfile::tempdir().expect("a directory");
    let [program, planted, marker] = ["ringfence", "planted", "marker"].map(|name| directory.path().join(name));
    std::fs::copy(BINARY, &program).expect("it is copied");
    let server = Server::start_by(Command::new(&program));
    std::fs::write(&planted, format!("#!/bin/sh\ntouch {}\n", marker.display())).expect("a script");
    std::fs::set_permissions(&planted, std::fs::Permissions::from_mode(0o755)).expect("it can be executed");
    std::fs::rename(&planted, &program).expect("it is replaced");
    let launcher = launcher_of(&server);
    kill(launcher);
    wait_until("it lives", || !process::is_alive(launcher));
    let mut session = String::new();
    wait_until("no new launcher starts", || {
        let answer = server.call("execute_code", &json!({"code": "1"}));
        session = answer["result"]["structuredContent"]["session_id"].as_str().unwrap_or_default().to_owned();
        !session.is_empty()
    });
    assert!(!marker.exists(), "the path was executed");
    let name = std::fs::read_to_string(format!("/proc/{}/comm", launcher_of(&server))).expect("a name");
    assert_eq!(name, "ringfence\n");
}

/// A process that stands still. Dropped, it goes on.
struct Stopped(rustix::process::Pid);

impl Stopped {
    fn new(pid: u32) -> Self {
        let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a process");
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("it can be stopped");
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::CONT);
    }
}

/// Does something that would hang if it were broken.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    done.recv_timeout(Duration::from_secs(20)).expect("it does not come to its end")
}

fn launcher_of(server: &Server) -> u32 {
    let launcher =
        process::descendants(server.process.id()).into_iter().find(|pid| parent_of(*pid) == server.process.id());
    launcher.expect("a launcher")
}

fn parent_of(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse().ok()).unwrap_or(0)
}
