//! Calls that cannot start, are cancelled, or end in unusual ways. Sessions and other calls must not be affected.

use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::time::Duration;

use ringfence_testkit::{Server, process, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

fn content(response: &Value) -> &Value {
    &response["result"]["structuredContent"]
}

fn is_busy(server: &Server, session: &str) -> bool {
    let info = server.call("get_sessions", &json!({"session_id": session}));
    content(&info)["sessions"][0]["status"] == "busy"
}

/// A request to run code in a session.
fn execute_request(code: &str, session: &str, timeout: f64) -> String {
    let arguments = json!({"code": code, "session_id": session, "timeout": timeout});
    let params = json!({"name": "execute_code", "arguments": arguments});
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string()
}

/// Disconnects a client that waits for a response. Returns once the server has noticed and closed the connection.
fn disconnect(mut connection: TcpStream) {
    connection.shutdown(Shutdown::Write).expect("end the connection");
    let mut response = String::new();
    let _ = connection.read_to_string(&mut response);
    assert_eq!(response, "", "the call has already ended");
}

#[test]
fn failed_command_start_does_not_affect_the_session() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "x = 'value'");
    let command = |line: &str| server.call("execute_command", &json!({"command": line, "session_id": session}));
    for line in ["a\0b".to_owned(), format!("echo {}", "x".repeat(100_000))] {
        assert_eq!(command(&line)["error"]["data"]["error_code"], "VALIDATION_ERROR");
    }
    let max_length = command(&format!("echo {} | wc -c", "x".repeat(96_000)));
    assert_eq!(content(&max_length)["stdout"], "96001\n");
    let fill = "import subprocess\nchildren = []\ntry:\n    while True: children.append(subprocess.Popen(['sleep', '100']))\nexcept OSError: pass";
    assert_eq!(server.execute(&session, fill)["status"], "ok");
    let refused = command("echo hi");
    assert_eq!((&refused["result"]["isError"], &content(&refused)["status"]), (&json!(true), &json!("error")));
    assert!(content(&refused)["notices"][0].as_str().is_some_and(|notice| notice.contains("processes")), "{refused}");
    assert_eq!(server.execute(&session, "[p.kill() or p.wait() for p in children]; print(x)")["stdout"], "value\n");
    assert_eq!(content(&command("echo hi"))["stdout"], "hi\n");
}

#[test]
fn killed_interpreter_is_replaced_although_a_child_has_its_socket() {
    let server = Server::start(&[], &[]);
    // A child inherits the kernel socket only if the code makes the descriptor inheritable.
    let share_socket = "import os, stat, time\nfor fd in map(int, os.listdir('/proc/self/fd')):\n    try:\n        \
                if stat.S_ISSOCK(os.fstat(fd).st_mode): os.set_inheritable(fd, True); os.dup(fd)\n    except OSError: \
                pass\nif os.fork() == 0:\n    time.sleep(40); os._exit(0)\nprint(os.getpid())";
    let started = server.call("execute_code", &json!({"code": share_socket}));
    let (session, pid) =
        (&content(&started)["session_id"], content(&started)["stdout"].as_str().expect("stdout").trim());
    // The init reports the death of the interpreter before the end of the command.
    let wait_until_reaped = format!("while kill -0 {pid} 2>/dev/null; do sleep 0.01; done");
    let kill = json!({"command": format!("kill -9 {pid}; {wait_until_reaped}"), "session_id": session});
    let killed = server.call("execute_command", &kill);
    assert!(killed["result"]["content"].to_string().contains("the interpreter died"), "{killed}");
    let next = server.call("execute_code", &json!({"code": "1 + 1", "session_id": session, "timeout": 5}));
    assert_eq!((&content(&next)["status"], &content(&next)["result"]), (&json!("ok"), &json!("2")), "{next}");
}

#[test]
fn call_of_a_stopped_session_returns_its_output() {
    let server = Server::start(&[], &[]);
    for (template, code) in [
        ("python", "import time\nprint('so far', flush=True)\nopen('printed', 'w').close()\ntime.sleep(60)"),
        ("bash", "echo so far; touch printed; sleep 60"),
    ] {
        let session = server.create_session(template, if template == "python" { "pass" } else { ":" });
        let mut call = server.send("POST /mcp", &execute_request(code, &session, 100.0));
        wait_until("the code printed nothing", || {
            let listed = server.call("list_files", &json!({"session_id": session, "path": "."}));
            content(&listed)["entries"][0]["name"] == "printed"
        });
        server.call("stop_session", &json!({"session_id": session}));
        let mut response = String::new();
        call.read_to_string(&mut response).expect("read the response");
        let response: Value =
            serde_json::from_str(response.split("\r\n\r\n").nth(1).unwrap_or_default()).expect("the body is JSON");
        let end = (&content(&response)["status"], &content(&response)["stdout"]);
        assert_eq!(end, (&json!("killed"), &json!("so far\n")), "{template}: {response}");
        assert!(response["result"]["content"].to_string().contains("the session was stopped"), "{response}");
    }
}

#[test]
fn stdio_server_ends_on_sigint_while_its_client_is_connected() {
    let state = tempfile::tempdir().expect("create a directory");
    let mut command = std::process::Command::new(crate::BINARY);
    command.args(["serve", "--stdio"]).env("RINGFENCE_STATE_DIR", state.path());
    let streams = || std::process::Stdio::piped();
    let mut server = command.stdin(streams()).stdout(streams()).stderr(streams()).spawn().expect("start the server");
    let mut stdout = std::io::BufReader::new(server.stdout.take().expect("stdout is piped"));
    let mut stdin = server.stdin.take().expect("stdin is piped");
    writeln!(stdin, r#"{{"jsonrpc":"2.0","id":1,"method":"ping"}}"#).expect("send the request");
    stdout.read_line(&mut String::new()).expect("read the response");
    kill_process(Pid::from_child(&server), Signal::INT).expect("interrupt the server");
    wait_until("the server did not end", || server.try_wait().expect("query the server").is_some());
    drop(stdin);
}

#[test]
fn stdio_server_responds_to_requests_after_the_end_of_its_input() {
    let (state, shared) =
        (tempfile::tempdir().expect("create a directory"), tempfile::tempdir().expect("create a directory"));
    let mut command = std::process::Command::new(crate::BINARY);
    let volume = format!("--volume={}:/shared:ro", shared.path().display());
    command.args(["serve", "--stdio", &volume]).env("RINGFENCE_STATE_DIR", state.path());
    let streams = || std::process::Stdio::piped();
    let mut server = command.stdin(streams()).stdout(streams()).stderr(streams()).spawn().expect("start the server");
    let mut stdin = server.stdin.take().expect("stdin is piped");
    let code = "import os, time\nwhile not os.path.exists('/shared/go'): time.sleep(0.01)\nprint(6 * 7)";
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "execute_code", "arguments": {"code": code}}});
    writeln!(stdin, "{call}").expect("send the request");
    drop(stdin);
    // The server reads the end of its input in the meantime, which has no visible effect.
    std::thread::sleep(Duration::from_millis(100));
    std::fs::write(shared.path().join("go"), "").expect("write the file");
    let output = server.wait_with_output().expect("wait for the server");
    let response: Value = serde_json::from_slice(&output.stdout).expect("one response");
    assert_eq!(content(&response)["stdout"], "42\n", "{response}");
}

#[test]
fn too_long_code_is_refused_and_does_not_affect_the_session() {
    let server = Server::start(&[], &[]);
    for (template, get) in [("python", "print(x)"), ("node", "console.log(x)")] {
        let session = server.create_session(template, "x = 'value'");
        let execute = |code: &str| server.call("execute_code", &json!({"code": code, "session_id": session}));
        assert_eq!(execute(&"#".repeat(9 << 20))["error"]["data"]["error_code"], "VALIDATION_ERROR");
        // JSON escapes make this code longer than the limit of the JavaScript kernel.
        let escaped = execute(&format!("//{}", "\u{1}".repeat(4 << 20)));
        assert_ne!(content(&escaped)["status"], "killed", "{template}");
        assert_eq!(server.execute(&session, get)["stdout"], "value\n", "{template}");
    }
}

#[test]
fn cancelled_queued_call_does_not_run() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "import os, time");
    let wait = "while not os.path.exists('go'): time.sleep(0.01)";
    let running = server.send("POST /mcp", &execute_request(wait, &session, 30.0));
    wait_until("the call did not start", || is_busy(&server, &session));
    let waiting = server.send("POST /mcp", &execute_request("open('ran', 'w')", &session, 30.0));
    // The server queues the call in the meantime, which has no visible effect.
    std::thread::sleep(Duration::from_millis(200));
    disconnect(waiting);
    server.create_file(&session, "go");
    let checked = server.execute(&session, "import os; print(os.path.exists('ran'))");
    assert_eq!(checked["stdout"], "False\n");
    drop(running);
}

#[test]
fn late_interrupt_does_not_affect_the_next_call() {
    let server = Server::start(&[], &[]);
    // The first call ends when the marker is removed. The second runs for 200 ms after `go` exists: the threads of Node
    // pass an interrupt on to each other with a delay.
    for (template, wait, next) in [
        (
            "python",
            "import os, time\nwhile os.path.exists('late-python'): time.sleep(0.01)\nopen('ended', 'w').close()",
            "while not os.path.exists('go'): time.sleep(0.01)\nfor _ in range(20): time.sleep(0.01)\nprint('complete')",
        ),
        (
            "node",
            "const fs = require('fs'), pause = (ms) => new Promise((r) => setTimeout(r, ms));\n\
             while (fs.existsSync('late-node')) await pause(10); fs.writeFileSync('ended', '')",
            "while (!fs.existsSync('go')) await pause(10); await pause(200); console.log('complete')",
        ),
        (
            "bash",
            "while [ -e late-bash ]; do sleep 0.01; done; : > ended",
            "until [ -e go ]; do sleep 0.01; done; for i in {1..20}; do sleep 0.01; done; echo complete",
        ),
    ] {
        let marker = format!("late-{template}");
        let session = server.create_session(template, if template == "python" { "pass" } else { "1" });
        server.call("write_file", &json!({"session_id": session, "path": marker, "content": ""}));
        let is_init = |pid: &u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let is_first = status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"));
            is_first && Path::new(&format!("/proc/{pid}/root/workspace/{marker}")).exists()
        };
        let init =
            process::descendants(server.process.id()).into_iter().find(is_init).expect("the init of the session");
        let workspace = format!("/proc/{init}/root/workspace");
        let init = i32::try_from(init).ok().and_then(Pid::from_raw).expect("a pid");
        // The server requests the interrupt while the first call runs; the init performs it after the end of that call.
        let first = server.send("POST /mcp", &execute_request(wait, &session, 30.0));
        wait_until("the call did not start", || is_busy(&server, &session));
        kill_process(init, Signal::STOP).expect("stop the init");
        disconnect(first);
        // The server sends the interrupt in the meantime, which has no visible effect before the init continues.
        std::thread::sleep(Duration::from_millis(200));
        let mut second = server.send("POST /mcp", &execute_request(next, &session, 30.0));
        std::fs::remove_file(Path::new(&workspace).join(&marker)).expect("remove the marker");
        wait_until("the first call did not end", || Path::new(&workspace).join("ended").exists());
        // A server that does not wait for the interrupt starts the second call in the meantime.
        std::thread::sleep(Duration::from_millis(200));
        kill_process(init, Signal::CONT).expect("continue the init");
        // The init handles its requests in order: the interrupt first.
        server.create_file(&session, "go");
        let mut response = String::new();
        second.read_to_string(&mut response).expect("read the response");
        let body = response.split("\r\n\r\n").nth(1).unwrap_or_default();
        let response: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {response}"));
        let (status, stdout) = (&content(&response)["status"], &content(&response)["stdout"]);
        assert_eq!((status, stdout), (&json!("ok"), &json!("complete\n")), "{template}: {response}");
    }
}

#[test]
fn failed_session_start_does_not_count_against_the_limit() {
    let root = tempfile::tempdir().expect("create a directory");
    let config = root.path().join("ringfence.toml");
    let empty = root.path().join("empty");
    std::fs::create_dir(&empty).expect("create a directory");
    let text = format!("[sessions]\nmax_sessions = 1\n[templates.empty]\nlanguage = \"python\"\nroot = {empty:?}\n");
    std::fs::write(&config, text).expect("write the configuration");
    let server = Server::start(&["--config", config.to_str().expect("a UTF-8 path")], &[]);
    for _ in 0..2 {
        let refused = server.call("execute_code", &json!({"code": "1", "template": "empty"}));
        assert_eq!(refused["error"]["data"]["error_code"], "SANDBOX_CREATION_ERROR", "{refused}");
    }
    wait_until("a session was left", || content(&server.call("get_sessions", &json!({})))["sessions"] == json!([]));
    server.create_session("python", "pass");
}

#[test]
fn session_with_undelivered_id_ends() {
    let server = Server::start(&[], &[]);
    let params = json!({"name": "execute_code", "arguments": {"code": "import time; time.sleep(20)"}});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let first = server.send("POST /mcp", &call.to_string());
    let count_sessions =
        || content(&server.call("get_sessions", &json!({})))["sessions"].as_array().map_or(0, Vec::len);
    wait_until("no session was created", || count_sessions() == 1);
    drop(first);
    wait_until("the session did not end", || count_sessions() == 0);
}

#[test]
fn exit_code_of_code_is_returned() {
    let server = Server::start(&[], &[]);
    for (template, exit) in
        [("python", "import sys; sys.exit(CODE)"), ("node", "process.exit(CODE)"), ("bash", "exit CODE")]
    {
        let session = server.create_session(template, "x=1");
        for (code, is_error) in [(0, false), (3, true)] {
            let arguments = json!({"code": exit.replace("CODE", &code.to_string()), "session_id": session});
            let response = server.call("execute_code", &arguments);
            let end = (&content(&response)["exit_code"], &response["result"]["isError"]);
            assert_eq!(end, (&json!(code), &json!(is_error)), "{template}: {response}");
        }
    }
}

#[test]
fn timeout_is_reported_although_the_code_catches_the_interrupt() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "import time, os");
    for code in [
        "try: time.sleep(60)\nexcept KeyboardInterrupt: print('continued')",
        "os.system('sleep 60'); print('continued')",
    ] {
        let response = server.call("execute_code", &json!({"code": code, "session_id": session, "timeout": 0.5}));
        assert_eq!(
            (&content(&response)["status"], &response["result"]["isError"]),
            (&json!("timed_out"), &json!(true)),
            "{response}"
        );
        assert_eq!(content(&response)["stdout"], "continued\n");
    }
}

#[test]
fn call_waits_for_a_program_started_with_exec() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("bash", "x=value");
    let replaced = server.execute(&session, "exec bash -c 'sleep 0.2; echo hi; exit 4'");
    assert_eq!((&replaced["stdout"], &replaced["exit_code"]), (&json!("hi\n"), &json!(4)), "{replaced}");
    assert!(replaced["notices"][0].as_str().is_some_and(|notice| notice.contains("lost")), "{replaced}");
    assert_eq!(server.execute(&session, "echo \"[$x]\"")["stdout"], "[]\n");
}

#[test]
fn template_mismatch_is_noted_and_unknown_template_or_session_is_refused() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "pass");
    let execute_with = |template: &str| {
        server.call("execute_code", &json!({"code": "1 + 1", "session_id": session, "template": template}))
    };
    assert_eq!(execute_with("nosuch")["error"]["data"]["error_code"], "VALIDATION_ERROR");
    let other = execute_with("node");
    assert_eq!(
        (&content(&other)["result"], content(&other)["notices"].as_array().map(Vec::len)),
        (&json!("2"), Some(1)),
        "{other}"
    );
    assert!(content(&execute_with("python"))["notices"].is_null());
    for unknown in ["x".repeat(200), "unknown".into()] {
        let refused = server.call("execute_code", &json!({"code": "1", "session_id": unknown}));
        assert_eq!(refused["error"]["data"]["error_code"], "SESSION_NOT_FOUND", "{refused}");
    }
}

#[test]
fn plain_requests_find_the_session_at_the_top_of_the_result() {
    let server = Server::start(&[], &[]);
    let created = server.call("execute_code", &json!({"code": "1"}))["result"].take();
    let session = created["structuredContent"]["session_id"].as_str().expect("a session id");
    assert_eq!((&created["session_id"], &created["session_created"]), (&json!(session), &json!(true)));
    let again = server.call("execute_command", &json!({"command": "true", "session_id": session}))["result"].take();
    assert_eq!((&again["session_id"], &again["session_created"]), (&json!(session), &json!(false)));
    // Clients with a handshake get only the members that MCP defines.
    let headers = format!("Host: {}\r\nContent-Type: application/json\r\nMcp-Session-Id: one\r\n", server.address);
    let params = json!({"name": "execute_code", "arguments": {"code": "1", "session_id": session}});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let (_, body) = server.http("POST /mcp", &headers, &call.to_string());
    let with_handshake: Value = serde_json::from_str(&body).expect("the body is JSON");
    assert_eq!(with_handshake["result"]["structuredContent"]["session_id"], session, "{body}");
    assert!(with_handshake["result"].get("session_id").is_none(), "{body}");
}

#[test]
fn health_reports_that_no_sandbox_can_be_created_until_one_can() {
    let shared = tempfile::tempdir().expect("create a directory");
    let volume = shared.path().join("shared");
    std::fs::create_dir(&volume).expect("create a directory");
    // Sandboxes of the pool would still have the volume.
    let server = Server::start(
        &["--volume", &format!("{}:/shared", volume.display())],
        &[("RINGFENCE_SESSIONS_POOL", "python=0,node=0,bash=0")],
    );
    let health = || server.http("GET /health", &format!("Host: {}\r\n", server.address), "").0;
    assert_eq!(health(), 200);
    std::fs::remove_dir(&volume).expect("remove the directory");
    let refused = server.call("execute_code", &json!({"code": "1"}));
    assert_eq!(refused["error"]["data"]["error_code"], "SANDBOX_CREATION_ERROR", "{refused}");
    assert_eq!(health(), 503);
    let about = server.http("GET /", &format!("Host: {}\r\n", server.address), "").1;
    let about: Value = serde_json::from_str(&about).expect("the body is JSON");
    assert_eq!((&about["status"], &about["backend"]["state"]), (&json!("degraded"), &json!("down")));
    assert_eq!(about["wrapper_status"], "disconnected");
    std::fs::create_dir(&volume).expect("create a directory");
    wait_until("the server did not recover", || health() == 200);
    let about = server.http("GET /", &format!("Host: {}\r\n", server.address), "").1;
    let about: Value = serde_json::from_str(&about).expect("the body is JSON");
    assert_eq!((&about["status"], &about["wrapper_status"]), (&json!("healthy"), &json!("connected")));
    server.create_session("python", "pass");
}
