//! Tests with a minimal worker in Python. The suite of the cli crate tests the real worker.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// Serves one tool, in the modern era, on connections that it receives over its stdin.
const WORKER: &str = r#"
import json, os, socket, struct, sys, threading
channel = socket.socket(fileno=0)
channel.setblocking(True)
_, (records,), _, _ = socket.recv_fds(channel, 128, 1)
print("worker", os.getpid(), file=sys.stderr, flush=True)

def serve(number, connection):
    try:
        with connection, connection.makefile("rwb") as stream:
            length, is_health_check = 0, stream.readline().startswith(b"GET /health ")
            while line := stream.readline().strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            if is_health_check:
                stream.write(os.environ.get("HEALTH", "HTTP/1.0 200 OK\r\n\r\n").encode())
                return
            method = json.loads(stream.read(length))["method"]
            record = struct.pack("<QQQQH", 2**64 - 1, 0, 0, 0, 4) + b"lost"
            os.pwrite(records, record, 1024 * int.from_bytes(number, "little"))
            if method == "crash":
                os._exit(7)
            if os.path.exists(os.environ.get("BUSY_WHILE", "")):
                stream.write(b"HTTP/1.0 503 Busy\r\nContent-Length: 0\r\n\r\n")
                return
            body = json.dumps({"result": {"tools": [{"name": "only"}], "pid": os.getpid()}}).encode()
            stream.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    except (OSError, ValueError):
        pass  # The client has disconnected.
    finally:
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
    send_on(&mut connect(supervisor), method)
}

fn send_on(stream: &mut TcpStream, method: &str) -> String {
    let body = format!(r#"{{"method":"{method}"}}"#);
    write!(stream, "POST /mcp HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut response = String::new();
    let _ = stream.read_to_string(&mut response);
    response
}

fn eventually(what: &str, mut is_met: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_met() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_gone(pid: u32) -> bool {
    !std::path::Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn exited_worker_is_replaced_behind_same_endpoint() {
    let supervisor = Supervisor::start(options(WORKER)).unwrap();
    let (endpoint, first) = (supervisor.endpoint().to_owned(), supervisor.status().worker_pid);
    assert_eq!((supervisor.health(), supervisor.restart_count()), (Health::Healthy, 0));
    for count in 1..4 {
        assert_eq!(send(&supervisor, "crash"), "lost");
        // Sent while there is no worker: waits for the next one.
        assert!(send(&supervisor, "tools/list").contains("only"));
        eventually("the restart is not counted", || supervisor.restart_count() == count);
    }
    eventually("the worker is not healthy", || supervisor.health() == Health::Healthy);
    let status = supervisor.status();
    assert_eq!((status.endpoint, status.last_reason), (endpoint, Some(Reason::Exited)));
    assert_eq!(status.last_detail.as_deref(), Some("the worker exited with code 7"));
    assert_ne!(status.worker_pid, first);
    assert_eq!(supervisor.stop(), Ending::Stopped);
    assert!(is_gone(status.worker_pid.unwrap()));
    assert_eq!(supervisor.health(), Health::Ended);
}

#[test]
fn idle_connection_continues_with_next_worker() {
    let supervisor = Supervisor::start(options(WORKER)).unwrap();
    let mut idle = connect(&supervisor);
    // This connection is accepted before the next one, which gets a response.
    assert!(send(&supervisor, "tools/list").contains("only"));
    assert_eq!(send(&supervisor, "crash"), "lost");
    eventually("the restart is not counted", || supervisor.restart_count() == 1);
    assert!(send_on(&mut idle, "tools/list").contains("only"));
}

#[test]
fn hanging_worker_is_killed_and_replaced() {
    let supervisor = Supervisor::start(options(WORKER)).unwrap();
    let pid = supervisor.status().worker_pid.unwrap();
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), Signal::STOP).unwrap();
    eventually("the worker is not replaced", || supervisor.restart_count() == 1);
    assert!(is_gone(pid));
    assert_eq!(supervisor.status().last_reason, Some(Reason::ProbeFailed));
    assert!(send(&supervisor, "tools/list").contains("only"));
}

#[test]
fn worker_that_cannot_start_is_reported_with_its_stderr() {
    let start = Supervisor::start(options("import sys; print('no such thing', file=sys.stderr); sys.exit(9)"));
    let Err(StartError::GaveUp(gave_up)) = start else { panic!("the supervisor started") };
    assert_eq!((gave_up.reason, gave_up.exit_code, gave_up.restarts), (Reason::Exited, Some(9), 0));
    assert_eq!(gave_up.stderr, ["no such thing"]);
    assert!(gave_up.endpoint.starts_with("http://127.0.0.1:"), "{}", gave_up.endpoint);
    let missing = Supervisor::start(Options::new("/nonexistent/ringfence"));
    assert!(matches!(missing, Err(StartError::GaveUp(gave_up)) if gave_up.detail.contains("/nonexistent/ringfence")));
}

#[test]
fn missing_tool_is_named_in_error() {
    let expected_tools = vec!["only".into(), "other".into()];
    let start =
        Supervisor::start(Options { expected_tools, preflight_timeout: Duration::from_secs(2), ..options(WORKER) });
    let Err(StartError::GaveUp(gave_up)) = start else { panic!("the supervisor started") };
    assert_eq!(gave_up.reason, Reason::ProbeFailed);
    assert!(gave_up.detail.ends_with("expected tools are missing: `other`"), "{}", gave_up.detail);
    assert!(gave_up.stderr[0].starts_with("worker "), "{:?}", gave_up.stderr);
}

#[test]
fn supervisor_gives_up_after_last_restart_and_reports_reason() {
    let supervisor = Supervisor::start(Options { max_restarts: 1, ..options(WORKER) }).unwrap();
    send(&supervisor, "crash");
    send(&supervisor, "crash");
    let Ending::GaveUp(gave_up) = supervisor.wait() else { panic!("the supervisor was stopped") };
    assert_eq!((gave_up.reason, gave_up.exit_code, gave_up.restarts), (Reason::Exited, Some(7), 1));
    let line = serde_json::to_value(&*gave_up).unwrap();
    assert_eq!((&line["reason"], &line["count"]), (&"exited".into(), &1.into()), "{line}");
    assert_eq!(supervisor.health(), Health::Ended);
}

#[test]
fn supervisor_can_be_stopped_during_start_by_another_thread() {
    let supervisor = Arc::new(Supervisor::launch(options("import time; time.sleep(1000)")).unwrap());
    eventually("no worker starts", || supervisor.status().worker_pid.is_some());
    let pid = supervisor.status().worker_pid.unwrap();
    let other = Arc::clone(&supervisor);
    let stopping = std::thread::spawn(move || other.stop());
    assert!(matches!(supervisor.ready(), Err(StartError::Stopped)));
    assert_eq!(stopping.join().unwrap(), Ending::Stopped);
    assert!(is_gone(pid));
}

/// Options of a worker that is overloaded while the file exists.
fn options_with_busy_file(file: &std::path::Path) -> Options {
    Options {
        variables: vec![("BUSY_WHILE".into(), file.into())],
        preflight_timeout: Duration::from_secs(2),
        ..options(WORKER)
    }
}

#[test]
fn later_worker_that_is_overloaded_from_start_is_not_killed() {
    let directory = tempfile::tempdir().unwrap();
    let busy = directory.path().join("busy");
    let supervisor = Supervisor::start(options_with_busy_file(&busy)).unwrap();
    std::fs::write(&busy, "").unwrap();
    // The next worker is overloaded from its start.
    let first = supervisor.status().worker_pid.unwrap();
    kill_process(Pid::from_raw(first.try_into().unwrap()).unwrap(), Signal::KILL).unwrap();
    eventually("the worker is not ready", || supervisor.restart_count() > 0 && supervisor.health() == Health::Healthy);
    let second = supervisor.status().worker_pid;
    assert_eq!(supervisor.ready().unwrap(), ["only"], "the tools are those of the previous worker");
    std::fs::remove_file(&busy).unwrap();
    assert!(send(&supervisor, "tools/list").contains("only"));
    assert_eq!((supervisor.restart_count(), supervisor.status().worker_pid), (1, second));
}

#[test]
fn first_worker_that_is_overloaded_is_not_ready() {
    let directory = tempfile::tempdir().unwrap();
    let busy = directory.path().join("busy");
    std::fs::write(&busy, "").unwrap();
    let Err(StartError::GaveUp(gave_up)) = Supervisor::start(options_with_busy_file(&busy)) else {
        panic!("the supervisor started")
    };
    assert!(gave_up.detail.ends_with("the worker is too busy to respond"), "{}", gave_up.detail);
}

#[test]
fn first_worker_is_ready_only_if_it_reports_its_health() {
    let cases = [
        ("HTTP/1.0 503 Down\r\n\r\n{\"status\": \"down\", \"reason\": \"no namespaces\"}", "no namespaces"),
        ("HTTP/1.0 503 Busy\r\n\r\n", "the health check of the worker failed with HTTP status 503"),
        ("", "the worker did not report its health: the response is not valid HTTP"),
    ];
    for (health, reason) in cases {
        let start = Supervisor::start(Options {
            variables: vec![("HEALTH".into(), health.into())],
            preflight_timeout: Duration::from_secs(1),
            ..options(WORKER)
        });
        let Err(StartError::GaveUp(gave_up)) = start else { panic!("the supervisor started") };
        assert!(gave_up.detail.ends_with(reason), "{}", gave_up.detail);
    }
}

/// Exits only after a second SIGTERM.
const NEEDS_TWO_SIGTERMS: &str = "
import signal, sys, threading
again, ended = threading.Event(), threading.Event()
def on_sigterm(*_):
    if again.is_set():
        sys.exit(0)
    again.set()
    print('stopping', file=sys.stderr, flush=True)
signal.signal(signal.SIGTERM, on_sigterm)
print('ready', file=sys.stderr, flush=True)
while True:
    signal.pause()
";

#[test]
fn immediate_stop_does_not_wait_for_running_calls() {
    let stderr = Arc::new(Mutex::new(String::new()));
    let sink = Arc::clone(&stderr);
    let write = move |bytes: &[u8]| sink.lock().push_str(&String::from_utf8_lossy(bytes));
    let log = Some(WorkerLog::new(write));
    let supervisor = Supervisor::launch(Options { log, ..options(NEEDS_TWO_SIGTERMS) }).unwrap();
    eventually("the worker does not start", || stderr.lock().contains("ready"));
    let requested = Instant::now();
    supervisor.request_stop();
    eventually("the worker gets no SIGTERM", || stderr.lock().contains("stopping"));
    supervisor.request_immediate_stop();
    assert_eq!(supervisor.wait(), Ending::Stopped);
    assert!(requested.elapsed() < supervisor_task::DRAIN_TIMEOUT, "the stop took {:?}", requested.elapsed());
}

#[test]
fn each_worker_is_probed_with_its_current_token() {
    let protected = WORKER.replace(
        r#"if line.lower().startswith(b"content-length:"):"#,
        r#"if line.lower().startswith(b"authorization:"):
                    token = line.split()[-1]
                if line.lower().startswith(b"content-length:"):"#,
    );
    let protected = protected.replace(
        r#"if method == "crash":"#,
        r#"if method != "crash" and token.decode() != open(os.environ["TOKEN"]).read():
                stream.write(b"HTTP/1.0 401 No\r\nContent-Length: 0\r\n\r\n")
                return
            if method == "crash":"#,
    );
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "first").unwrap();
    let read = file.clone();
    let token = TokenSource::new(move || std::fs::read_to_string(&read).ok());
    let variables = vec![("TOKEN".into(), file.clone().into())];
    let supervisor = Supervisor::start(Options { token: Some(token), variables, ..options(&protected) }).unwrap();
    std::fs::write(&file, "second").unwrap();
    send(&supervisor, "crash");
    eventually("the worker is not replaced", || {
        supervisor.restart_count() == 1 && supervisor.health() == Health::Healthy
    });
}

#[tokio::test]
async fn port_in_use_is_reported_within_async_context() {
    let occupied = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = Listen::Address(occupied.local_addr().unwrap());
    let launched = Supervisor::launch(Options { listen, ..options(WORKER) });
    assert!(matches!(launched, Err(StartError::Listen(error)) if error.kind() == std::io::ErrorKind::AddrInUse));
}
