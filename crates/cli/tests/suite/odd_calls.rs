//! Calls that cannot be begun, that nobody waits for any more, or that end otherwise than usual: nothing else suffers.

use std::io::{BufRead as _, Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use ringfence_testkit::{Server, process, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

fn fields(answer: &Value) -> &Value {
    &answer["result"]["structuredContent"]
}

fn is_busy(server: &Server, session: &str) -> bool {
    let told = server.call("get_sessions", &json!({"session_id": session}));
    fields(&told)["sessions"][0]["status"] == "busy"
}

fn message(code: &str, session: &str, timeout: f64) -> String {
    let arguments = json!({"code": code, "session_id": session, "timeout": timeout});
    let params = json!({"name": "execute_code", "arguments": arguments});
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string()
}

#[test]
fn a_command_that_cannot_be_started_costs_nothing_but_itself() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "x = 'kept'");
    let command = |line: &str| server.call("execute_command", &json!({"command": line, "session_id": session}));
    for line in ["a\0b".to_owned(), format!("echo {}", "x".repeat(100_000))] {
        assert_eq!(command(&line)["error"]["data"]["error_code"], "VALIDATION_ERROR");
    }
    let longest = command(&format!("echo {} | wc -c", "x".repeat(96_000)));
    assert_eq!(fields(&longest)["stdout"], "96001\n");
    let fill = "import subprocess\nmade = []\ntry:\n    while True: made.append(subprocess.Popen(['sleep', '100']))\nexcept OSError: pass";
    assert_eq!(server.execute(&session, fill)["status"], "ok");
    let refused = command("echo hi");
    assert_eq!((&refused["result"]["isError"], &fields(&refused)["status"]), (&json!(true), &json!("error")));
    assert!(fields(&refused)["notices"][0].as_str().is_some_and(|why| why.contains("processes")), "{refused}");
    assert_eq!(server.execute(&session, "[p.kill() or p.wait() for p in made]; print(x)")["stdout"], "kept\n");
    assert_eq!(fields(&command("echo hi"))["stdout"], "hi\n");
}

#[test]
fn an_interpreter_that_a_command_kills_is_replaced_although_its_socket_is_held() {
    let server = Server::start(&[], &[]);
    // The interpreter keeps its socket to itself, unless told otherwise.
    let hold = "import os, stat, time\nfor fd in map(int, os.listdir('/proc/self/fd')):\n    try:\n        \
                if stat.S_ISSOCK(os.fstat(fd).st_mode): os.set_inheritable(fd, True); os.dup(fd)\n    except OSError: \
                pass\nif os.fork() == 0:\n    time.sleep(40); os._exit(0)\nprint(os.getpid())";
    let begun = server.call("execute_code", &json!({"code": hold}));
    let (session, pid) = (&fields(&begun)["session_id"], fields(&begun)["stdout"].as_str().expect("text").trim());
    let kill = json!({"command": format!("kill -9 {pid}; sleep 1"), "session_id": session});
    let killed = server.call("execute_command", &kill);
    assert!(killed["result"]["content"].to_string().contains("the interpreter died"), "{killed}");
    let next = server.call("execute_code", &json!({"code": "1 + 1", "session_id": session, "timeout": 5}));
    assert_eq!((&fields(&next)["status"], &fields(&next)["result"]), (&json!("ok"), &json!("2")), "{next}");
}

#[test]
fn a_call_whose_session_is_stopped_tells_what_was_printed_until_then() {
    let server = Server::start(&[], &[]);
    for (template, code) in [
        ("python", "import time\nprint('so far', flush=True)\nopen('printed', 'w').close()\ntime.sleep(60)"),
        ("bash", "echo so far; touch printed; sleep 60"),
    ] {
        let session = server.create_session(template, if template == "python" { "pass" } else { ":" });
        let mut call = server.send("POST /mcp", &message(code, &session, 100.0));
        wait_until("nothing is printed", || {
            let listed = server.call("list_files", &json!({"session_id": session, "path": "."}));
            fields(&listed)["entries"][0]["name"] == "printed"
        });
        server.call("stop_session", &json!({"session_id": session}));
        let mut answer = String::new();
        call.read_to_string(&mut answer).expect("it answers");
        let answer: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap_or_default()).expect("JSON");
        let told = (&fields(&answer)["status"], &fields(&answer)["stdout"]);
        assert_eq!(told, (&json!("killed"), &json!("so far\n")), "{template}: {answer}");
        assert!(answer["result"]["content"].to_string().contains("the session was stopped"), "{answer}");
    }
}

#[test]
fn a_server_over_stdio_ends_when_told_although_its_client_goes_on() {
    let state = tempfile::tempdir().expect("a directory");
    let mut command = std::process::Command::new(crate::BINARY);
    command.args(["serve", "--stdio"]).env("RINGFENCE_STATE_DIR", state.path());
    let streams = || std::process::Stdio::piped();
    let mut server = command.stdin(streams()).stdout(streams()).stderr(streams()).spawn().expect("it runs");
    let mut said = std::io::BufReader::new(server.stdout.take().expect("it is piped"));
    let mut stdin = server.stdin.take().expect("it is piped");
    writeln!(stdin, r#"{{"jsonrpc":"2.0","id":1,"method":"ping"}}"#).expect("it reads");
    said.read_line(&mut String::new()).expect("it answers");
    kill_process(Pid::from_child(&server), Signal::INT).expect("it lives");
    wait_until("it goes on", || server.try_wait().expect("it is ours").is_some());
    drop(stdin);
}

#[test]
fn requests_that_are_piped_into_a_server_over_stdio_are_answered() {
    let state = tempfile::tempdir().expect("a directory");
    let mut command = std::process::Command::new(crate::BINARY);
    command.args(["serve", "--stdio"]).env("RINGFENCE_STATE_DIR", state.path());
    let streams = || std::process::Stdio::piped();
    let mut server = command.stdin(streams()).stdout(streams()).stderr(streams()).spawn().expect("it runs");
    let mut stdin = server.stdin.take().expect("it is piped");
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "execute_code", "arguments": {"code": "import time; time.sleep(0.5); print(6 * 7)"}}});
    writeln!(stdin, "{call}").expect("it reads");
    drop(stdin);
    let said = server.wait_with_output().expect("it ends");
    let answer: Value = serde_json::from_slice(&said.stdout).expect("one answer");
    assert_eq!(fields(&answer)["stdout"], "42\n", "{answer}");
}

#[test]
fn code_that_is_too_long_is_refused_or_told_and_costs_nothing() {
    let server = Server::start(&[], &[]);
    for (template, get) in [("python", "print(x)"), ("node", "console.log(x)")] {
        let session = server.create_session(template, "x = 'kept'");
        let ask = |code: &str| server.call("execute_code", &json!({"code": code, "session_id": session}));
        assert_eq!(ask(&"#".repeat(9 << 20))["error"]["data"]["error_code"], "VALIDATION_ERROR");
        // Escaped, it is more than the interpreter of JavaScript takes.
        let odd = ask(&format!("//{}", "\u{1}".repeat(4 << 20)));
        assert_ne!(fields(&odd)["status"], "killed", "{template}");
        assert_eq!(server.execute(&session, get)["stdout"], "kept\n", "{template}");
    }
}

#[test]
fn a_call_that_is_cancelled_before_its_turn_does_not_run() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "import time");
    let running = server.send("POST /mcp", &message("time.sleep(1)", &session, 30.0));
    wait_until("the call does not start", || is_busy(&server, &session));
    let waiting = server.send("POST /mcp", &message("open('ran', 'w')", &session, 30.0));
    std::thread::sleep(Duration::from_millis(200));
    drop(waiting);
    let looked = server.execute(&session, "import os; print(os.path.exists('ran'))");
    assert_eq!(looked["stdout"], "False\n");
    drop(running);
}

#[test]
fn an_interrupt_that_comes_late_strikes_no_next_call() {
    let server = Server::start(&[], &[]);
    for (template, wait, next) in [
        (
            "python",
            "import time; time.sleep(1.5)",
            "import time\nfor _ in range(150): time.sleep(0.01)\nprint('whole')",
        ),
        (
            "node",
            "await new Promise(r => setTimeout(r, 1500))",
            "await new Promise(r => setTimeout(r, 1500)); console.log('whole')",
        ),
        ("bash", "sleep 1.5", "for i in {1..150}; do sleep 0.01; done; echo whole"),
    ] {
        let mark = format!("late-{template}");
        let session = server.create_session(template, if template == "python" { "pass" } else { "1" });
        server.call("write_file", &json!({"session_id": session, "path": mark, "content": ""}));
        let is_init = |pid: &u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let is_first = status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"));
            is_first && Path::new(&format!("/proc/{pid}/root/workspace/{mark}")).exists()
        };
        let init = process::descendants(server.process.id()).into_iter().find(is_init).expect("it has an init");
        let init = i32::try_from(init).ok().and_then(Pid::from_raw).expect("a process");
        // The interrupt is ordered while the first one runs, and carried out when it has long ended.
        let first = server.send("POST /mcp", &message(wait, &session, 30.0));
        wait_until("the call does not start", || is_busy(&server, &session));
        kill_process(init, Signal::STOP).expect("it lives");
        drop(first);
        let mut second = server.send("POST /mcp", &message(next, &session, 30.0));
        std::thread::sleep(Duration::from_millis(2100));
        kill_process(init, Signal::CONT).expect("it lives");
        let mut answer = String::new();
        second.read_to_string(&mut answer).expect("it answers");
        let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
        let answer: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
        let (status, stdout) = (&fields(&answer)["status"], &fields(&answer)["stdout"]);
        assert_eq!((status, stdout), (&json!("ok"), &json!("whole\n")), "{template}: {answer}");
    }
}

#[test]
fn a_session_that_could_not_be_begun_takes_no_place() {
    let root = tempfile::tempdir().expect("a directory");
    let config = root.path().join("ringfence.toml");
    let empty = root.path().join("empty");
    std::fs::create_dir(&empty).expect("it can be made");
    let text = format!("[sessions]\nmax_sessions = 1\n[templates.empty]\nlanguage = \"python\"\nroot = {empty:?}\n");
    std::fs::write(&config, text).expect("it can be written");
    let server = Server::start(&["--config", config.to_str().expect("a name")], &[]);
    for _ in 0..2 {
        let refused = server.call("execute_code", &json!({"code": "1", "template": "empty"}));
        assert_eq!(refused["error"]["data"]["error_code"], "SANDBOX_CREATION_ERROR", "{refused}");
    }
    wait_until("a session is left", || fields(&server.call("get_sessions", &json!({})))["sessions"] == json!([]));
    server.create_session("python", "pass");
}

#[test]
fn a_session_of_which_its_caller_was_not_told_ends() {
    let server = Server::start(&[], &[]);
    let params = json!({"name": "execute_code", "arguments": {"code": "import time; time.sleep(20)"}});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let first = server.send("POST /mcp", &call.to_string());
    let live = || fields(&server.call("get_sessions", &json!({})))["sessions"].as_array().map_or(0, Vec::len);
    wait_until("there is no session", || live() == 1);
    drop(first);
    wait_until("the session is left", || live() == 0);
}

#[test]
fn what_code_exits_with_is_its_exit_code() {
    let server = Server::start(&[], &[]);
    for (template, exit) in
        [("python", "import sys; sys.exit(CODE)"), ("node", "process.exit(CODE)"), ("bash", "exit CODE")]
    {
        let session = server.create_session(template, "x=1");
        for (code, is_error) in [(0, false), (3, true)] {
            let arguments = json!({"code": exit.replace("CODE", &code.to_string()), "session_id": session});
            let answer = server.call("execute_code", &arguments);
            let told = (&fields(&answer)["exit_code"], &answer["result"]["isError"]);
            assert_eq!(told, (&json!(code), &json!(is_error)), "{template}: {answer}");
        }
    }
}

#[test]
fn a_call_whose_time_was_up_says_so_whatever_the_code_made_of_it() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "import time, os");
    for code in
        ["try: time.sleep(60)\nexcept KeyboardInterrupt: print('went on')", "os.system('sleep 60'); print('went on')"]
    {
        let answer = server.call("execute_code", &json!({"code": code, "session_id": session, "timeout": 0.5}));
        assert_eq!(
            (&fields(&answer)["status"], &answer["result"]["isError"]),
            (&json!("timed_out"), &json!(true)),
            "{answer}"
        );
        assert_eq!(fields(&answer)["stdout"], "went on\n");
    }
}

#[test]
fn a_shell_that_is_replaced_by_another_program_waits_for_it() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("bash", "x=kept");
    let replaced = server.execute(&session, "exec bash -c 'sleep 0.3; echo hi; exit 4'");
    assert_eq!((&replaced["stdout"], &replaced["exit_code"]), (&json!("hi\n"), &json!(4)), "{replaced}");
    assert!(replaced["notices"][0].as_str().is_some_and(|notice| notice.contains("lost")), "{replaced}");
    assert_eq!(server.execute(&session, "echo \"[$x]\"")["stdout"], "[]\n");
}

#[test]
fn what_a_session_is_not_is_told_and_what_nothing_is_refused() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "pass");
    let ask = |template: &str| {
        server.call("execute_code", &json!({"code": "1 + 1", "session_id": session, "template": template}))
    };
    assert_eq!(ask("nosuch")["error"]["data"]["error_code"], "VALIDATION_ERROR");
    let other = ask("node");
    assert_eq!(
        (&fields(&other)["result"], fields(&other)["notices"].as_array().map(Vec::len)),
        (&json!("2"), Some(1)),
        "{other}"
    );
    assert!(fields(&ask("python"))["notices"].is_null());
    for unknown in [String::new(), "x".repeat(200), "unknown".into()] {
        let refused = server.call("execute_code", &json!({"code": "1", "session_id": unknown}));
        assert_eq!(refused["error"]["data"]["error_code"], "SESSION_NOT_FOUND", "{refused}");
    }
}

#[test]
fn a_host_on_which_no_sandbox_can_be_made_says_so_until_it_can() {
    let shared = tempfile::tempdir().expect("a directory");
    let volume = shared.path().join("shared");
    std::fs::create_dir(&volume).expect("it can be made");
    // None is kept ready, which would be as it was before.
    let server = Server::start(
        &["--volume", &format!("{}:/shared", volume.display())],
        &[("RINGFENCE_SESSIONS_POOL", "python=0,node=0,bash=0")],
    );
    let health = || server.http("GET /health", &format!("Host: {}\r\n", server.address), "").0;
    assert_eq!(health(), 200);
    std::fs::remove_dir(&volume).expect("it can be removed");
    let refused = server.call("execute_code", &json!({"code": "1"}));
    assert_eq!(refused["error"]["data"]["error_code"], "SANDBOX_CREATION_ERROR", "{refused}");
    assert_eq!(health(), 503);
    let about = server.http("GET /", &format!("Host: {}\r\n", server.address), "").1;
    let about: Value = serde_json::from_str(&about).expect("JSON");
    assert_eq!((&about["status"], &about["backend"]["state"]), (&json!("degraded"), &json!("down")));
    std::fs::create_dir(&volume).expect("it can be made");
    wait_until("it stays ill", || health() == 200);
    server.create_session("python", "pass");
}
