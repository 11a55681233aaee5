//! With a worker of a few lines; with the real one it is tested beside the program.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// Serves one tool, in the modern era, on connections that come over its standard input.
const WORKER: &str = r#"
import json, os, socket, struct, sys, threading
channel = socket.socket(fileno=0)
channel.setblocking(True)
_, (wills,), _, _ = socket.recv_fds(channel, 128, 1)
print("worker", os.getpid(), file=sys.stderr, flush=True)

def serve(number, connection):
    try:
        with connection, connection.makefile("rwb") as stream:
            length = 0
            while line := stream.readline().strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            method = json.loads(stream.read(length))["method"]
            will = struct.pack("<QQQQH", 2**64 - 1, 0, 0, 0, 4) + b"lost"
            os.pwrite(wills, will, 1024 * int.from_bytes(number, "little"))
            if method == "crash":
                os._exit(7)
            body = json.dumps({"result": {"tools": [{"name": "only"}], "pid": os.getpid()}}).encode()
            stream.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    except (OSError, ValueError):
        pass  # Whoever asked is gone.
    channel.send(number)

while True:
    number, (descriptor,), _, _ = socket.recv_fds(channel, 128, 1)
    connection = socket.socket(fileno=descriptor)
    connection.setblocking(True)
    threading.Thread(target=serve, args=(number, connection), daemon=True).start()
"#;

fn options(script: &str) -> Options {
    Options {
        arguments: vec!["-c".into(), script.into()],
        probe_interval: Duration::from_millis(50),
        probe_timeout: Duration::from_secs(2),
        ..Options::new("python3")
    }
}

fn connect(supervisor: &Supervisor) -> TcpStream {
    let address = supervisor.endpoint().strip_prefix("http://").unwrap().strip_suffix("/mcp").unwrap();
    TcpStream::connect(address).unwrap()
}

fn send(supervisor: &Supervisor, method: &str) -> String {
    ask(&mut connect(supervisor), method)
}

fn ask(stream: &mut TcpStream, method: &str) -> String {
    let body = format!(r#"{{"method":"{method}"}}"#);
    write!(stream, "POST /mcp HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_gone(pid: u32) -> bool {
    !std::path::Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn a_worker_that_exits_is_replaced_behind_the_same_endpoint() {
    let supervisor = Supervisor::start(options(WORKER)).unwrap();
    let (endpoint, first) = (supervisor.endpoint().to_owned(), supervisor.status().worker_pid);
    assert_eq!((supervisor.health(), supervisor.restart_count()), (Health::Healthy, 0));
    for count in 1..4 {
        assert_eq!(send(&supervisor, "crash"), "lost");
        // Sent at once: it waits for the next worker.
        assert!(send(&supervisor, "tools/list").contains("only"));
        eventually("it is not counted", || supervisor.restart_count() == count);
    }
    eventually("it is not healthy", || supervisor.health() == Health::Healthy);
    let status = supervisor.status();
    assert_eq!((status.endpoint, status.last_reason), (endpoint, Some(Reason::Exited)));
    assert_eq!(status.last_detail.as_deref(), Some("the worker exited with code 7"));
    assert_ne!(status.worker_pid, first);
    assert_eq!(supervisor.stop(), Ending::Stopped);
    assert!(is_gone(status.worker_pid.unwrap()));
    assert_eq!(supervisor.health(), Health::Ended);
}

#[test]
fn a_connection_on_which_nothing_was_asked_goes_on_with_the_next_worker() {
    let supervisor = Supervisor::start(options(WORKER)).unwrap();
    let mut idle = connect(&supervisor);
    // Accepted before the next, which is answered.
    assert!(send(&supervisor, "tools/list").contains("only"));
    assert_eq!(send(&supervisor, "crash"), "lost");
    eventually("it is not counted", || supervisor.restart_count() == 1);
    assert!(ask(&mut idle, "tools/list").contains("only"));
}

#[test]
fn a_worker_that_hangs_is_killed_and_replaced() {
    let supervisor = Supervisor::start(options(WORKER)).unwrap();
    let pid = supervisor.status().worker_pid.unwrap();
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), Signal::STOP).unwrap();
    eventually("it is not replaced", || supervisor.restart_count() == 1);
    assert!(is_gone(pid));
    assert_eq!(supervisor.status().last_reason, Some(Reason::ProbeFailed));
    assert!(send(&supervisor, "tools/list").contains("only"));
}

#[test]
fn a_worker_that_cannot_start_is_reported_with_its_last_words() {
    let start = Supervisor::start(options("import sys; print('no such thing', file=sys.stderr); sys.exit(9)"));
    let Err(StartError::GaveUp(why)) = start else { panic!("it started") };
    assert_eq!((why.reason, why.exit_code, why.restarts), (Reason::Exited, Some(9), 0));
    assert_eq!(why.stderr, ["no such thing"]);
    assert!(why.endpoint.starts_with("http://127.0.0.1:"), "{}", why.endpoint);
    let missing = Supervisor::start(Options::new("/nonexistent/ringfence"));
    assert!(matches!(missing, Err(StartError::GaveUp(why)) if why.detail.contains("/nonexistent/ringfence")));
}

#[test]
fn a_tool_that_is_missing_is_named() {
    let expected_tools = vec!["only".into(), "other".into()];
    let start =
        Supervisor::start(Options { expected_tools, preflight_timeout: Duration::from_secs(2), ..options(WORKER) });
    let Err(StartError::GaveUp(why)) = start else { panic!("it started") };
    assert_eq!(why.reason, Reason::ProbeFailed);
    assert!(why.detail.ends_with("expected tools are missing: `other`"), "{}", why.detail);
    assert!(why.stderr[0].starts_with("worker "), "{:?}", why.stderr);
}

#[test]
fn after_the_last_restart_it_gives_up_and_says_why() {
    let supervisor = Supervisor::start(Options { max_restarts: 1, ..options(WORKER) }).unwrap();
    send(&supervisor, "crash");
    send(&supervisor, "crash");
    let Ending::GaveUp(why) = supervisor.wait() else { panic!("it was stopped") };
    assert_eq!((why.reason, why.exit_code, why.restarts), (Reason::Exited, Some(7), 1));
    let line = serde_json::to_value(&*why).unwrap();
    assert_eq!((&line["reason"], &line["count"]), (&"exited".into(), &1.into()), "{line}");
    assert_eq!(supervisor.health(), Health::Ended);
}

#[test]
fn it_can_be_stopped_while_it_starts_and_by_another_thread() {
    let supervisor = Arc::new(Supervisor::launch(options("import time; time.sleep(1000)")).unwrap());
    eventually("no worker starts", || supervisor.status().worker_pid.is_some());
    let pid = supervisor.status().worker_pid.unwrap();
    let other = Arc::clone(&supervisor);
    let stopping = std::thread::spawn(move || other.stop());
    assert!(matches!(supervisor.ready(), Err(StartError::Stopped)));
    assert_eq!(stopping.join().unwrap(), Ending::Stopped);
    assert!(is_gone(pid));
}
