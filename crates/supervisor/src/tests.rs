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
            if os.path.exists(os.environ.get("BUSY_WHILE", "")):
                stream.write(b"HTTP/1.0 503 Busy\r\nContent-Length: 0\r\n\r\n")
                return
            body = json.dumps({"result": {"tools": [{"name": "only"}], "pid": os.getpid()}}).encode()
            stream.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    except (OSError, ValueError):
        pass  # Whoever asked is gone.
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

/// A worker that has too much to do for as long as the file is there.
fn at_times_busy(file: &std::path::Path) -> Options {
    Options {
        variables: vec![("BUSY_WHILE".into(), file.into())],
        preflight_timeout: Duration::from_secs(2),
        ..options(WORKER)
    }
}

#[test]
fn a_worker_that_has_too_much_to_do_from_its_first_moment_is_not_killed() {
    let directory = tempfile::tempdir().unwrap();
    let busy = directory.path().join("busy");
    let supervisor = Supervisor::start(at_times_busy(&busy)).unwrap();
    std::fs::write(&busy, "").unwrap();
    // Not answered with its end: all it says is that it is busy.
    let first = supervisor.status().worker_pid.unwrap();
    kill_process(Pid::from_raw(first.try_into().unwrap()).unwrap(), Signal::KILL).unwrap();
    eventually("it is not ready", || supervisor.restart_count() > 0 && supervisor.health() == Health::Healthy);
    let second = supervisor.status().worker_pid;
    assert_eq!(supervisor.ready().unwrap(), ["only"], "what it offers is known from before");
    std::fs::remove_file(&busy).unwrap();
    assert!(send(&supervisor, "tools/list").contains("only"));
    assert_eq!((supervisor.restart_count(), supervisor.status().worker_pid), (1, second));
}

#[test]
fn a_first_worker_that_has_too_much_to_do_is_not_announced() {
    let directory = tempfile::tempdir().unwrap();
    let busy = directory.path().join("busy");
    std::fs::write(&busy, "").unwrap();
    let Err(StartError::GaveUp(why)) = Supervisor::start(at_times_busy(&busy)) else { panic!("it started") };
    assert!(why.detail.ends_with("it is too busy to answer"), "{}", why.detail);
}

/// Ends only when it is told so for the second time.
const RELUCTANT: &str = "
import signal, sys, threading
again, ended = threading.Event(), threading.Event()
def told(*_):
    if again.is_set():
        sys.exit(0)
    again.set()
    print('told', file=sys.stderr, flush=True)
signal.signal(signal.SIGTERM, told)
print('ready', file=sys.stderr, flush=True)
while True:
    signal.pause()
";

#[test]
fn whoever_is_in_a_hurry_does_not_wait_for_calls_under_way() {
    let said = Arc::new(Mutex::new(String::new()));
    let heard = Arc::clone(&said);
    let take = move |bytes: &[u8]| heard.lock().push_str(&String::from_utf8_lossy(bytes));
    let log = Some(WorkerLog::new(take));
    let supervisor = Supervisor::launch(Options { log, ..options(RELUCTANT) }).unwrap();
    eventually("it does not start", || said.lock().contains("ready"));
    let asked = Instant::now();
    supervisor.ask_to_stop();
    eventually("it is not told", || said.lock().contains("told"));
    supervisor.ask_to_stop_at_once();
    assert_eq!(supervisor.wait(), Ending::Stopped);
    assert!(asked.elapsed() < supervise::DRAIN, "it has waited for {:?}", asked.elapsed());
}

#[test]
fn every_worker_is_probed_with_the_token_of_its_time() {
    let guarded = WORKER.replace(
        r#"if line.lower().startswith(b"content-length:"):"#,
        r#"if line.lower().startswith(b"authorization:"):
                    token = line.split()[-1]
                if line.lower().startswith(b"content-length:"):"#,
    );
    let guarded = guarded.replace(
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
    let supervisor = Supervisor::start(Options { token: Some(token), variables, ..options(&guarded) }).unwrap();
    std::fs::write(&file, "second").unwrap();
    send(&supervisor, "crash");
    eventually("it is not replaced", || supervisor.restart_count() == 1 && supervisor.health() == Health::Healthy);
}

#[tokio::test]
async fn a_port_that_is_taken_is_told_also_where_nothing_may_block() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = Listen::Address(taken.local_addr().unwrap());
    let launched = Supervisor::launch(Options { listen, ..options(WORKER) });
    assert!(matches!(launched, Err(StartError::Listen(error)) if error.kind() == std::io::ErrorKind::AddrInUse));
}
