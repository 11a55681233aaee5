//! Background processes of calls: they continue after the call, survive interrupts of later calls, and end with the
//! session, also if the guest tries to prevent that.

use std::process::Command;
use std::time::Duration;

use ringfence_testkit::{Server, User, for_each_user, process, skip, wait_until};
use serde_json::{Value, json};

use crate::BINARY;

fn command(server: &Server, session: &str, line: &str, timeout: f64) -> Value {
    let arguments = json!({"command": line, "session_id": session, "timeout": timeout});
    server.call("execute_command", &arguments)["result"]["structuredContent"].take()
}

fn code(server: &Server, session: &str, code: &str, timeout: f64) -> Value {
    let arguments = json!({"code": code, "session_id": session, "timeout": timeout});
    server.call("execute_code", &arguments)["result"]["structuredContent"].take()
}

#[test]
fn background_process_of_a_command_can_still_print() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("bash", ":");
    let line = "(for i in 1 2 3 4; do echo tick; echo tock >&2; echo x >> ticks; sleep .1; done; head -c 300000 \
                /dev/zero; echo all >> ticks) &";
    assert_eq!(command(&server, &session, line, 10.0)["status"], "ok");
    wait_until("the background process did not continue", || {
        command(&server, &session, "cat ticks", 10.0)["stdout"] == "x\nx\nx\nx\nall\n"
    });
}

#[test]
fn background_process_of_a_command_survives_the_server() {
    for_each_user("background_process_of_a_command_survives_the_server", |user| {
        let server = Server::start_as(user, &[], &[]);
        let session = server.create_session("bash", ":");
        let line =
            "(until [ -e go ]; do echo tick; sleep .05; done; head -c 300000 /dev/zero; echo tock >&2; touch done) &";
        assert_eq!(command(&server, &session, line, 10.0)["status"], "ok");
        let server = Server::start_in(user, server.kill(), &[], &[]);
        assert_eq!(command(&server, &session, "touch go", 10.0)["status"], "ok");
        wait_until("the background process did not continue", || {
            command(&server, &session, "ls done", 10.0)["exit_code"] == 0
        });
    });
}

#[test]
fn program_outside_of_its_process_group_is_interrupted_and_variables_survive() {
    let server = Server::start(&[], &[]);
    for (template, set, endless, get) in [
        ("bash", "k=value", "timeout 100 sleep 100", "echo $k"),
        ("bash", "k=value", "setsid -w sleep 100", "echo $k"),
        ("python", "k = 'value'", "import os; os.system('timeout 100 sleep 100')", "print(k)"),
        ("node", "k = 'value'", "require('child_process').execSync('timeout 100 sleep 100')", "console.log(k)"),
    ] {
        let session = server.create_session(template, set);
        let stopped = code(&server, &session, endless, 1.0);
        assert_eq!(stopped["status"], "timed_out", "{template}: {stopped}");
        assert_eq!(server.execute(&session, get)["stdout"], "value\n", "{template}");
        assert_eq!(command(&server, &session, "pgrep -x sleep", 10.0)["stdout"], "", "{template}");
    }
}

#[test]
fn killed_call_leaves_no_process() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("bash", ":");
    let ignores_signals =
        "trap '' TERM INT; timeout -s KILL 100 sh -c 'trap \"\" TERM INT; sleep 77; sleep 78'; echo x";
    let killed = command(&server, &session, ignores_signals, 1.0);
    assert_eq!(killed["status"], "timed_out", "{killed}");
    assert_eq!(command(&server, &session, "pgrep -x 'sleep|timeout'", 10.0)["stdout"], "");
    // A child in a session without the shell is killed too, although the shell ends first.
    let waited_for = command(&server, &session, "setsid --wait sleep 79; echo x", 1.0);
    assert_eq!((&waited_for["status"], &waited_for["stdout"]), (&json!("timed_out"), &json!("")), "{waited_for}");
    assert_eq!(command(&server, &session, "pgrep -x sleep", 10.0)["stdout"], "");
}

#[test]
fn exec_in_a_shell_returns_the_exit_code_of_the_program() {
    let server = Server::start(&[], &[]);
    for (cell, status, exit_code) in [("exec true", "ok", 0), ("exec sh -c 'exit 3'", "error", 3)] {
        let ended = code(&server, &server.create_session("bash", ":"), cell, 10.0);
        assert_eq!((&ended["status"], &ended["exit_code"]), (&json!(status), &json!(exit_code)), "{ended}");
    }
}

#[test]
fn process_of_an_earlier_cell_survives_the_interrupt_of_a_later_one() {
    let server = Server::start(&[], &[]);
    for (template, start, endless, alive) in [
        (
            "python",
            "import subprocess, time\np = subprocess.Popen(['sleep', '100'])",
            "time.sleep(60)",
            "print(p.poll())",
        ),
        (
            "node",
            "const p = require('child_process').spawn('sleep', ['100'])",
            "while (true);",
            "console.log(p.exitCode === null && p.signalCode === null ? 'None' : 'ended')",
        ),
    ] {
        let session = server.create_session(template, start);
        assert_eq!(code(&server, &session, endless, 1.0)["status"], "timed_out");
        assert_eq!(server.execute(&session, alive)["stdout"], "None\n", "{template}");
    }
}

#[test]
fn interrupted_code_has_time_to_clean_up() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "import time");
    // Much less than the pause before the next interrupt, which a unit test of the deadline checks.
    let slow = "try:\n    time.sleep(60)\nfinally:\n    time.sleep(0.2)\n    print('cleaned up')";
    let stopped = code(&server, &session, slow, 1.0);
    assert_eq!((&stopped["status"], &stopped["stdout"]), (&json!("timed_out"), &json!("cleaned up\n")), "{stopped}");
}

#[test]
fn standard_streams_can_be_opened_by_their_names() {
    for_each_user("standard_streams_can_be_opened_by_their_names", |user| {
        let server = Server::start_as(user, &[], &[]);
        let session = server.create_session("bash", ":");
        let line = "echo out > /dev/stdout; echo err > /dev/stderr; echo both | tee /dev/fd/1";
        for result in [command(&server, &session, line, 10.0), code(&server, &session, line, 10.0)] {
            let streams = (&result["stdout"], &result["stderr"]);
            assert_eq!(streams, (&json!("out\nboth\nboth\n"), &json!("err\n")), "{user:?}: {result}");
        }
        let session = server.create_session("python", "open('/dev/stdout', 'w').write('named')");
        let written = server.execute(&session, "with open('/dev/stdout', 'w') as out: out.write('named')");
        assert_eq!(written["stdout"], "named", "{user:?}: {written}");
    });
}

/// Python code that stops all processes of the sandbox again and again. It ends after a minute.
const STOP_ALL: &str = "import os, signal, sys, time\nif os.fork() == 0:\n    os.setsid()\n    end = time.time() + 60\n    \
                        while time.time() < end:\n        try: os.kill(-1, signal.SIGSTOP)\n        except OSError: pass\n    \
                        os._exit(0)";

#[test]
fn stopped_init_does_not_block_other_sessions() {
    let server = Server::start(&[], &[]);
    let other = server.create_session("python", "x = 'other'");
    let session = server.create_session("python", "pass");
    let line = format!("python3 -c \"{STOP_ALL}\"");
    // The command may stop itself; otherwise the next command is stopped.
    let first = command(&server, &session, &line, 1.0);
    let second = if first["status"] == "ok" { command(&server, &session, "echo hi", 1.0) } else { first };
    assert!(["killed", "timed_out"].contains(&second["status"].as_str().unwrap_or_default()), "{second}");
    assert_eq!(server.execute(&other, "print(x)")["stdout"], "other\n");
    // The session can be stopped although the guest continues.
    let stopped = server.call("stop_session", &json!({"session_id": session}));
    assert!(stopped["result"].is_object(), "{stopped}");
    assert_eq!(server.http("GET /health", &format!("Host: {}\r\n", server.address), "").0, 200);
}

#[test]
fn large_requests_to_a_stopped_init_do_not_block_other_sessions() {
    let server = Server::start(&[], &[]);
    let other = server.create_session("python", "x = 'other'");
    let session = server.create_session("python", "pass");
    command(&server, &session, &format!("python3 -c \"{STOP_ALL}\""), 1.0);
    let body = json!({"argv": ["true", "x".repeat(60_000)]}).to_string();
    let path = format!("POST /v1/sessions/{session}/processes");
    let requests: Vec<_> = (0..12).map(|_| server.send(&path, &body)).collect();
    assert_eq!(server.execute(&other, "print(x)")["stdout"], "other\n");
    assert_eq!(server.http("GET /health", &format!("Host: {}\r\n", server.address), "").0, 200);
    drop(requests);
    let stopped = server.call("stop_session", &json!({"session_id": session}));
    assert!(stopped["result"].is_object(), "{stopped}");
}

#[test]
fn stopped_session_leaves_no_process() {
    let server = Server::start(&[], &[("RINGFENCE_SESSIONS_POOL", "python=0,node=0,bash=0")]);
    // Stopping the first session leaves the launcher, which is not counted.
    let first = server.create_session("python", "pass");
    server.call("stop_session", &json!({"session_id": first}));
    let before = process::descendants(server.process.id());
    for _ in 0..3 {
        let session = server.create_session("python", "x = bytearray(400 << 20)");
        let pids: Vec<u32> = process::descendants(server.process.id()).difference(&before).copied().collect();
        assert!(pids.len() > 1, "{pids:?}");
        server.call("stop_session", &json!({"session_id": session}));
        assert!(!pids.iter().any(|pid| process::is_alive(*pid)), "{pids:?}");
    }
}

/// Counts the sessions that were created and those that ended, according to the audit log.
fn count_audited_sessions(server: &Server) -> (usize, usize) {
    let mut command = Command::new(BINARY);
    command.args(["audit", "export"]).env("RINGFENCE_STATE_DIR", server.state.path());
    let output = command.output().expect("run `audit export`");
    assert!(output.status.success(), "{output:?}");
    let events = String::from_utf8(output.stdout).expect("the export is text");
    let events: Vec<Value> =
        events.lines().map(|line| serde_json::from_str(line).expect("the event is JSON")).collect();
    let count = |kind: &str| events.iter().filter(|event| event["kind"] == kind).count();
    (count("session_created"), count("session_ended"))
}

#[test]
fn session_of_a_disconnected_client_ends() {
    let server = Server::start(&[], &[]);
    server.create_session("python", "pass");
    // The server refuses clients that have disconnected before it looked up their user, so several attempts may be
    // necessary.
    wait_until("no session of a disconnected client was created", || {
        for _ in 0..4 {
            let request = server.send("POST /v1/sessions", r#"{"template": "node"}"#);
            std::thread::sleep(Duration::from_millis(2));
            drop(request);
        }
        count_audited_sessions(&server).0 > 1
    });
    wait_until("a session was left", || {
        let (created, ended) = count_audited_sessions(&server);
        let listed = server.call("get_sessions", &json!({}));
        let sessions = listed["result"]["structuredContent"]["sessions"].as_array();
        created == ended + 1 && sessions.is_some_and(|sessions| sessions.len() == 1)
    });
}

#[test]
fn memory_limit_is_reported_without_a_cgroup() {
    if let Some(reason) = User::Plain.unavailable() {
        return skip("memory_limit_is_reported_without_a_cgroup", &reason);
    }
    let server = Server::start_as(User::Plain, &[], &[]);
    let session = server.create_session("bash", ":");
    let allocate = "for i in 1 2; do python3 -c 'b = bytearray(700 << 20); import time; time.sleep(5)' & done; wait";
    let result = command(&server, &session, allocate, 20.0);
    assert_eq!(result["status"], "killed", "{result}");
    assert!(result["notices"].to_string().contains("memory limit of 1 GiB"), "{result}");
}
