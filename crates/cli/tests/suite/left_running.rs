//! What calls leave running, and what becomes of it when a later one runs out of time or the guest holds on to it.

use std::time::Duration;

use ringfence_testkit::{Server, User, for_each_user, process, skip, wait_until};
use serde_json::{Value, json};

fn command(server: &Server, session: &str, line: &str, timeout: f64) -> Value {
    let arguments = json!({"command": line, "session_id": session, "timeout": timeout});
    server.call("execute_command", &arguments)["result"]["structuredContent"].take()
}

fn code(server: &Server, session: &str, code: &str, timeout: f64) -> Value {
    let arguments = json!({"code": code, "session_id": session, "timeout": timeout});
    server.call("execute_code", &arguments)["result"]["structuredContent"].take()
}

#[test]
fn what_a_command_leaves_running_may_go_on_printing() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("bash", ":");
    let line = "(for i in 1 2 3 4; do echo tick; echo tock >&2; echo x >> ticks; sleep .1; done; head -c 300000 \
                /dev/zero; echo all >> ticks) &";
    assert_eq!(command(&server, &session, line, 10.0)["status"], "ok");
    wait_until("it does not go on", || command(&server, &session, "cat ticks", 10.0)["stdout"] == "x\nx\nx\nx\nall\n");
}

#[test]
fn what_a_command_leaves_running_outlives_the_server() {
    for_each_user("what_a_command_leaves_running_outlives_the_server", |who| {
        let server = Server::start_as(who, &[], &[]);
        let session = server.create_session("bash", ":");
        let line =
            "(until [ -e go ]; do echo tick; sleep .05; done; head -c 300000 /dev/zero; echo tock >&2; touch done) &";
        assert_eq!(command(&server, &session, line, 10.0)["status"], "ok");
        let server = Server::start_in(who, server.kill(), &[], &[]);
        assert_eq!(command(&server, &session, "touch go", 10.0)["status"], "ok");
        wait_until("it does not go on", || command(&server, &session, "ls done", 10.0)["exit_code"] == 0);
    });
}

#[test]
fn a_program_that_leaves_its_group_is_interrupted_and_state_is_kept() {
    let server = Server::start(&[], &[]);
    for (template, set, endless, get) in [
        ("bash", "k=kept", "timeout 100 sleep 100", "echo $k"),
        ("bash", "k=kept", "setsid -w sleep 100", "echo $k"),
        ("python", "k = 'kept'", "import os; os.system('timeout 100 sleep 100')", "print(k)"),
        ("node", "k = 'kept'", "require('child_process').execSync('timeout 100 sleep 100')", "console.log(k)"),
    ] {
        let session = server.create_session(template, set);
        let stopped = code(&server, &session, endless, 1.0);
        assert_eq!(stopped["status"], "timed_out", "{template}: {stopped}");
        assert_eq!(server.execute(&session, get)["stdout"], "kept\n", "{template}");
        assert_eq!(command(&server, &session, "pgrep -x sleep", 10.0)["stdout"], "", "{template}");
    }
}

#[test]
fn of_what_is_killed_nothing_goes_on() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("bash", ":");
    let stubborn = "trap '' TERM INT; timeout -s KILL 100 sh -c 'trap \"\" TERM INT; sleep 77; sleep 78'; echo x";
    let killed = command(&server, &session, stubborn, 1.0);
    assert_eq!(killed["status"], "timed_out", "{killed}");
    assert_eq!(command(&server, &session, "pgrep -x 'sleep|timeout'", 10.0)["stdout"], "");
    // What it waits for is ended also where it is nobody's group, and the shell ends before it.
    let waited_for = command(&server, &session, "setsid --wait sleep 79; echo x", 1.0);
    assert_eq!((&waited_for["status"], &waited_for["stdout"]), (&json!("timed_out"), &json!("")), "{waited_for}");
    assert_eq!(command(&server, &session, "pgrep -x sleep", 10.0)["stdout"], "");
}

#[test]
fn a_shell_that_becomes_another_program_has_the_status_of_its_end() {
    let server = Server::start(&[], &[]);
    for (cell, status, exit_code) in [("exec true", "ok", 0), ("exec sh -c 'exit 3'", "error", 3)] {
        let ended = code(&server, &server.create_session("bash", ":"), cell, 10.0);
        assert_eq!((&ended["status"], &ended["exit_code"]), (&json!(status), &json!(exit_code)), "{ended}");
    }
}

#[test]
fn what_an_earlier_cell_has_started_survives_the_interrupt_of_a_later_one() {
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
fn cleaning_up_after_an_interrupt_is_given_time() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "import time");
    let slow = "try:\n    time.sleep(60)\nfinally:\n    time.sleep(0.7)\n    print('cleaned up')";
    let stopped = code(&server, &session, slow, 1.0);
    assert_eq!((&stopped["status"], &stopped["stdout"]), (&json!("timed_out"), &json!("cleaned up\n")), "{stopped}");
}

#[test]
fn standard_streams_can_be_opened_by_their_names() {
    for_each_user("standard_streams_can_be_opened_by_their_names", |who| {
        let server = Server::start_as(who, &[], &[]);
        let session = server.create_session("bash", ":");
        let line = "echo out > /dev/stdout; echo err > /dev/stderr; echo both | tee /dev/fd/1";
        for told in [command(&server, &session, line, 10.0), code(&server, &session, line, 10.0)] {
            let streams = (&told["stdout"], &told["stderr"]);
            assert_eq!(streams, (&json!("out\nboth\nboth\n"), &json!("err\n")), "{who:?}: {told}");
        }
        let session = server.create_session("python", "open('/dev/stdout', 'w').write('named')");
        let written = server.execute(&session, "with open('/dev/stdout', 'w') as out: out.write('named')");
        assert_eq!(written["stdout"], "named", "{who:?}: {written}");
    });
}

/// It ends by itself after a while, wherever it runs.
const STOP_ALL: &str = "import os, signal, sys, time\nif os.fork() == 0:\n    os.setsid()\n    end = time.time() + 60\n    \
                        while time.time() < end:\n        try: os.kill(-1, signal.SIGSTOP)\n        except OSError: pass\n    \
                        os._exit(0)";

#[test]
fn a_guest_that_keeps_its_init_from_working_harms_nobody_else() {
    let server = Server::start(&[], &[]);
    let other = server.create_session("python", "x = 'mine'");
    let session = server.create_session("python", "pass");
    let line = format!("python3 -c \"{STOP_ALL}\"");
    // It may be struck itself, or the next command.
    let first = command(&server, &session, &line, 1.0);
    let second = if first["status"] == "ok" { command(&server, &session, "echo hi", 1.0) } else { first };
    assert!(["killed", "timed_out"].contains(&second["status"].as_str().unwrap_or_default()), "{second}");
    assert_eq!(server.execute(&other, "print(x)")["stdout"], "mine\n");
    // Whatever the guest goes on doing, the session can be used again, or at least ended.
    let stopped = server.call("stop_session", &json!({"session_id": session}));
    assert!(stopped["result"].is_object(), "{stopped}");
    assert_eq!(server.http("GET /health", &format!("Host: {}\r\n", server.address), "").0, 200);
}

#[test]
fn large_orders_to_an_init_that_does_not_read_hold_up_nobody() {
    let server = Server::start(&[], &[]);
    let other = server.create_session("python", "x = 'mine'");
    let session = server.create_session("python", "pass");
    command(&server, &session, &format!("python3 -c \"{STOP_ALL}\""), 1.0);
    let body = json!({"argv": ["true", "x".repeat(60_000)]}).to_string();
    let path = format!("POST /v1/sessions/{session}/processes");
    let asked: Vec<_> = (0..12).map(|_| server.send(&path, &body)).collect();
    assert_eq!(server.execute(&other, "print(x)")["stdout"], "mine\n");
    assert_eq!(server.http("GET /health", &format!("Host: {}\r\n", server.address), "").0, 200);
    drop(asked);
    let stopped = server.call("stop_session", &json!({"session_id": session}));
    assert!(stopped["result"].is_object(), "{stopped}");
}

#[test]
fn when_a_stop_is_answered_nothing_of_the_session_is_left() {
    let server = Server::start(&[], &[("RINGFENCE_SESSIONS_POOL", "python=0,node=0,bash=0")]);
    // The launcher stays.
    let first = server.create_session("python", "pass");
    server.call("stop_session", &json!({"session_id": first}));
    let before = process::descendants(server.process.id());
    for _ in 0..3 {
        let session = server.create_session("python", "x = bytearray(400 << 20)");
        let own: Vec<u32> = process::descendants(server.process.id()).difference(&before).copied().collect();
        assert!(own.len() > 1, "{own:?}");
        server.call("stop_session", &json!({"session_id": session}));
        assert!(!own.iter().any(|pid| process::is_alive(*pid)), "{own:?}");
    }
}

#[test]
fn a_session_made_for_nobody_ends() {
    let server = Server::start(&[], &[]);
    server.create_session("python", "pass");
    for _ in 0..4 {
        let request = server.send("POST /v1/sessions", r#"{"template": "node"}"#);
        std::thread::sleep(Duration::from_millis(2));
        drop(request);
    }
    // They are being made.
    std::thread::sleep(Duration::from_secs(1));
    wait_until("a session is left", || {
        let listed = server.call("get_sessions", &json!({}));
        listed["result"]["structuredContent"]["sessions"].as_array().is_some_and(|sessions| sessions.len() == 1)
    });
}

#[test]
fn a_session_that_was_killed_for_its_memory_is_told_so_without_a_cgroup_too() {
    if let Some(why) = User::Plain.unavailable() {
        return skip("a_session_that_was_killed_for_its_memory_is_told_so_without_a_cgroup_too", &why);
    }
    let server = Server::start_as(User::Plain, &[], &[]);
    let session = server.create_session("bash", ":");
    let eat = "for i in 1 2; do python3 -c 'b = bytearray(700 << 20); import time; time.sleep(5)' & done; wait";
    let told = command(&server, &session, eat, 20.0);
    assert_eq!(told["status"], "killed", "{told}");
    assert!(told["notices"].to_string().contains("memory limit of 1 GiB"), "{told}");
}
