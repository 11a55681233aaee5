//! Commands beside running code, and tasks that go on between calls.

use std::io::Read as _;
use std::net::{Shutdown, TcpStream};

use ringfence_testkit::{Server, wait_until};
use serde_json::{Value, json};

/// Starts a call and does not wait for its response.
fn start(server: &Server, tool: &str, arguments: &Value) -> TcpStream {
    let params = json!({"name": tool, "arguments": arguments});
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    server.send("POST /mcp", &request.to_string())
}

fn start_code(server: &Server, session: &str, code: &str, timeout: f64) -> TcpStream {
    start(server, "execute_code", &json!({"code": code, "session_id": session, "timeout": timeout}))
}

fn start_command(server: &Server, session: &str, line: &str) -> TcpStream {
    start(server, "execute_command", &json!({"command": line, "session_id": session}))
}

/// Waits for the response of a call, and returns its structured content.
fn finish(mut connection: TcpStream) -> Value {
    let mut response = String::new();
    connection.read_to_string(&mut response).expect("read the response");
    let json = response.lines().rev().find_map(|line| {
        let line = line.strip_prefix("data: ").unwrap_or(line);
        serde_json::from_str::<Value>(line).ok().filter(|value| value["result"].is_object())
    });
    let mut json = json.unwrap_or_else(|| panic!("no result in {response}"));
    json["result"]["structuredContent"].take()
}

fn command(server: &Server, session: &str, line: &str) -> Value {
    let arguments = json!({"command": line, "session_id": session});
    server.call("execute_command", &arguments)["result"]["structuredContent"].take()
}

fn status(server: &Server, session: &str) -> Value {
    let info = server.call("get_sessions", &json!({"session_id": session}));
    info["result"]["structuredContent"]["sessions"][0]["status"].clone()
}

/// Waits until so many files of a session have names that begin with `started`.
fn wait_for_starts(server: &Server, session: &str, number: usize) {
    wait_until("the calls did not start", || starts(server, session) >= number);
}

fn starts(server: &Server, session: &str) -> usize {
    let listed = server.call("list_files", &json!({"session_id": session, "path": "."}));
    let entries = listed["result"]["structuredContent"]["entries"].as_array();
    let names = entries.into_iter().flatten().filter_map(|entry| entry["name"].as_str());
    names.filter(|name| name.starts_with("started")).count()
}

const WAITING_CODE: &str =
    "import os, time\nopen('started', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)\nx = 7";

#[test]
fn command_runs_beside_code_and_code_runs_in_order() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "x = 1");
    let first = start_code(&server, &session, WAITING_CODE, 30.0);
    wait_for_starts(&server, &session, 1);
    let second = start_code(&server, &session, "open('ran', 'w').close(); print(x)", 30.0);
    let beside = command(&server, &session, "ls; echo beside");
    assert_eq!((&beside["status"], &beside["stdout"]), (&json!("ok"), &json!("started\nbeside\n")));
    assert_eq!(status(&server, &session), "busy");
    assert_eq!(command(&server, &session, "touch go")["status"], "ok");
    let (first, second) = (finish(first), finish(second));
    assert_eq!((&first["status"], &second["stdout"]), (&json!("ok"), &json!("7\n")));
    // The second call waited for the first; its duration does not contain the wait.
    assert!(second["duration_ms"].as_u64() < first["duration_ms"].as_u64(), "{first} {second}");
    assert_eq!(status(&server, &session), "idle");
}

#[test]
fn concurrent_commands_are_limited_and_the_rest_waits() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("bash", ":");
    let line = |number: usize| format!("touch started{number}; until [ -e go ]; do sleep .05; done; echo {number}");
    let running: Vec<TcpStream> = (0..9).map(|number| start_command(&server, &session, &line(number))).collect();
    wait_for_starts(&server, &session, 8);
    std::thread::sleep(std::time::Duration::from_millis(150));
    assert_eq!(starts(&server, &session), 8);
    // Code does not wait for commands.
    assert_eq!(server.execute(&session, "touch go")["status"], "ok");
    let outputs: Vec<Value> = running.into_iter().map(|call| finish(call)["stdout"].take()).collect();
    let expected: Vec<Value> = (0..9).map(|number| format!("{number}\n").into()).collect();
    assert_eq!(outputs, expected);
}

#[test]
fn cancelled_call_does_not_end_the_others() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "x = 1");
    let code = start_code(&server, &session, WAITING_CODE, 30.0);
    let wait = "touch started-other; until [ -e go ]; do sleep .05; done; echo done";
    let other = start_command(&server, &session, wait);
    let cancelled =
        start_command(&server, &session, "trap 'touch ended; exit' TERM; touch started-cancelled; sleep 60 & wait");
    wait_for_starts(&server, &session, 3);
    cancelled.shutdown(Shutdown::Both).expect("disconnect");
    wait_until("the command was not ended", || {
        command(&server, &session, "ls")["stdout"].to_string().contains("ended")
    });
    assert_eq!(command(&server, &session, "touch go")["status"], "ok");
    assert_eq!(finish(other)["stdout"], "done\n");
    assert_eq!(finish(code)["status"], "ok");
    assert_eq!(server.execute(&session, "print(x)")["stdout"], "7\n");
}

#[test]
fn command_survives_the_kill_of_the_interpreter() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "x = 1");
    let waiting = start_command(&server, &session, "touch started; until [ -e go ]; do sleep .05; done; echo survived");
    wait_for_starts(&server, &session, 1);
    let endless = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\nwhile True: pass";
    let killed = finish(start_code(&server, &session, endless, 0.2));
    assert_eq!(killed["status"], "killed");
    assert_eq!(status(&server, &session), "busy");
    server.create_file(&session, "go");
    let survived = finish(waiting);
    assert_eq!((&survived["status"], &survived["stdout"]), (&json!("ok"), &json!("survived\n")));
}

#[test]
fn stop_ends_all_running_calls_with_their_output() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "x = 1");
    let code = start_code(
        &server,
        &session,
        "print('code', flush=True); open('started1', 'w').close(); import time; time.sleep(100)",
        60.0,
    );
    let shell = start_command(&server, &session, "echo shell; touch started2; sleep 100");
    wait_for_starts(&server, &session, 2);
    let stopped = server.call("stop_session", &json!({"session_id": session}));
    assert_eq!(stopped["result"]["structuredContent"]["was_running"], true, "{stopped}");
    for (call, output) in [(code, "code\n"), (shell, "shell\n")] {
        let ended = finish(call);
        assert_eq!((&ended["status"], &ended["stdout"]), (&json!("killed"), &json!(output)), "{ended}");
        assert_eq!(ended["notices"], json!(["the session was stopped while the call ran"]), "{ended}");
    }
}

#[test]
fn loss_of_the_sandbox_is_reported_by_all_running_calls() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "x = 1");
    let code = start_code(&server, &session, WAITING_CODE, 30.0);
    let shell = start_command(&server, &session, "touch started2; sleep 100; true");
    wait_for_starts(&server, &session, 2);
    let sandbox = ringfence_testkit::process::descendants(std::process::id());
    let sleeper = sandbox
        .into_iter()
        .find(|pid| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"sleep\x00100")));
    // The parent of the shell that sleeps is the init of the sandbox.
    let parent_of = |pid: u32| -> Option<u32> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
    };
    let init = sleeper.and_then(parent_of).and_then(parent_of).expect("the init of the sandbox");
    let init = rustix::process::Pid::from_raw(i32::try_from(init).expect("pid")).expect("pid");
    rustix::process::kill_process(init, rustix::process::Signal::KILL).expect("kill the init");
    for call in [code, shell] {
        let ended = finish(call);
        assert_eq!(ended["status"], "killed", "{ended}");
        assert!(ended["notices"].to_string().contains("the sandbox was killed"), "{ended}");
    }
    assert_eq!(command(&server, &session, "echo new")["stdout"], "new\n");
    assert_eq!(status(&server, &session), "idle");
}

#[test]
fn tasks_go_on_between_calls_and_their_output_is_in_the_next_response() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "import asyncio, os");
    // More output than a pipe contains, after the response of this call.
    let code = "async def work():\n    while not os.path.exists('go'): await asyncio.sleep(0.01)\n    \
                for n in range(300):\n        print('x' * 1000)\n        await asyncio.sleep(0)\n    \
                open('worked', 'w').close()\ntask = asyncio.create_task(work())";
    assert_eq!(server.execute(&session, code)["status"], "ok");
    command(&server, &session, "touch go");
    wait_until("the task did not go on", || command(&server, &session, "ls worked")["stdout"] == "worked\n");
    let next = server.execute(&session, "print('next')");
    let read = server.request("resources/read", &json!({"uri": next["stdout_resource"]}));
    let stdout = read["result"]["contents"][0]["text"].as_str().unwrap_or_default();
    assert!(stdout.starts_with("xxx") && stdout.ends_with("x\nnext\n") && stdout.len() > 300_000, "{next}");
}

#[test]
fn task_that_blocks_the_loop_does_not_make_the_session_unusable() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "import asyncio, time; value = 'kept'");
    let code = "async def block():\n    await asyncio.sleep(0)\n    open('started', 'w').close()\n    time.sleep(100)\n\
                task = asyncio.create_task(block())";
    server.execute(&session, code);
    wait_for_starts(&server, &session, 1);
    let blocked = finish(start_code(&server, &session, "value = 'changed'", 0.3));
    assert_eq!(blocked["status"], "timed_out", "{blocked}");
    assert!(blocked["error"]["message"].to_string().contains("a background task blocked the event loop"), "{blocked}");
    assert_eq!(server.execute(&session, "print(value)")["stdout"], "kept\n");
}

#[test]
fn html_copy_of_a_table_is_for_clients_that_request_it() {
    let table = "class T:\n def _repr_html_(self): return '<b>'\n def __repr__(self): return 'a b'\nT()";
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "x = 1");
    let html = |server: &Server, session: &str, rich: Value| {
        let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", server.address);
        let mut body = json!({"code": table});
        body.as_object_mut().expect("an object").extend(rich.as_object().cloned().unwrap_or_default());
        let (_, response) = server.http(&format!("POST /v1/sessions/{session}/exec"), &headers, &body.to_string());
        let response: Value = serde_json::from_str(&response).expect("JSON");
        assert_eq!(response["result"], "a b", "{response}");
        response["display"].to_string().contains("text/html")
    };
    assert!(!html(&server, &session, json!({})));
    assert!(html(&server, &session, json!({"rich_html": true})));
    let called = server.call("execute_code", &json!({"code": table, "session_id": session})).to_string();
    assert!(!called.contains("text/html"), "{called}");
    let server = Server::start(&[], &[("RINGFENCE_SESSIONS_RICH_HTML", "true")]);
    let called = server.call("execute_code", &json!({"code": table})).to_string();
    assert!(called.contains("text/html"), "{called}");
}
