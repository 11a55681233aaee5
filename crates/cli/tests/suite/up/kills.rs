//! Workers and supervisors that are killed or hang.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

/// Returns the number in an environment variable.
fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Outcome of a call.
enum Outcome {
    Completed(Value),
    /// An error that says that the call may have run.
    Lost,
}

/// A client that connects again when its connection is closed.
struct Caller<'a> {
    address: &'a str,
    stream: Option<BufReader<TcpStream>>,
    keep_alive: bool,
}

impl Caller<'_> {
    fn call(&mut self, arguments: &Value) -> Outcome {
        let (address, connection) = (self.address, if self.keep_alive { "keep-alive" } else { "close" });
        let connect = || BufReader::new(TcpStream::connect(address).expect("no connection is refused"));
        let mut stream = self.stream.take().unwrap_or_else(connect);
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params":
            {"name": "execute_code", "arguments": arguments}})
        .to_string();
        let length = request.len();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: {address}\r\nConnection: {connection}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        let sent = stream.get_mut().write_all(format!("{head}{request}").as_bytes());
        sent.expect("connection stays open while a request is sent");
        let (mut length, mut is_closed, mut line) = (0, false, String::new());
        while stream.read_line(&mut line).expect("connection stays open until the response") > 2 {
            let lower = line.to_lowercase();
            length =
                lower.strip_prefix("content-length: ").map_or(length, |text| text.trim().parse().expect("a length"));
            is_closed |= lower.starts_with("connection: close");
            line.clear();
        }
        assert!(length > 0, "no response: {line:?}");
        let mut body = vec![0; length];
        stream.read_exact(&mut body).expect("response is complete");
        self.stream = Some(stream).filter(|_| self.keep_alive && !is_closed);
        let response: Value = serde_json::from_slice(&body).expect("valid JSON");
        let error = response["error"].as_str().or_else(|| response["error"]["message"].as_str());
        match error {
            None => Outcome::Completed(response),
            Some(error) => {
                assert!(error.contains("may have run"), "{response}");
                Outcome::Lost
            }
        }
    }
}

/// Counts up in a new session until `stop` is set. Returns how many calls were completed and how many were lost.
///
/// `progress` is the number of completed calls so far, including the one that creates the session.
fn client(mut caller: Caller<'_>, stop: &AtomicBool, progress: &AtomicUsize) -> (usize, usize) {
    let session = loop {
        if let Outcome::Completed(response) = caller.call(&json!({"code": "x = 0"})) {
            let session = response["result"]["structuredContent"]["session_id"].as_str();
            break session.unwrap_or_else(|| panic!("no session: {response}")).to_owned();
        }
    };
    progress.fetch_add(1, Ordering::Relaxed);
    let (mut completed, mut lost) = (0, 0);
    let (mut min, mut max) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        // A lost call may have run, so it raises the upper limit only.
        max += 1;
        match caller.call(&json!({"code": "x += 1; print(x)", "session_id": session})) {
            Outcome::Lost => lost += 1,
            Outcome::Completed(response) => {
                completed += 1;
                progress.fetch_add(1, Ordering::Relaxed);
                let content = &response["result"]["structuredContent"];
                let x: usize =
                    content["stdout"].as_str().and_then(|text| text.trim().parse().ok()).unwrap_or_else(|| {
                        panic!("the variable is lost, after {completed} completed and {lost} lost calls: {response}");
                    });
                assert!(x > min && x <= max, "{x} is not greater than {min} and at most {max}");
                (min, max) = (x, x);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    (completed, lost)
}

/// `RINGFENCE_TEST_KILLS` and `RINGFENCE_TEST_CLIENTS` set the numbers of kills and clients.
#[test]
fn clients_continue_while_workers_are_killed_repeatedly() {
    let (kills, clients) = (number("RINGFENCE_TEST_KILLS", 10), number("RINGFENCE_TEST_CLIENTS", 20));
    let variables = [("RINGFENCE_MAX_SESSIONS", "1000"), ("RINGFENCE_SESSIONS_POOL", "python=1")];
    let (server, line) = up(&["--max-restarts", "1000", "--probe-interval-ms", "100"], &variables);
    let stop = AtomicBool::new(false);
    let progress: Vec<AtomicUsize> = (0..clients).map(|_| AtomicUsize::new(0)).collect();
    let (completed, lost) = std::thread::scope(|scope| {
        let (address, stop) = (&server.address, &stop);
        let callers = (0..clients).map(|number| Caller { address, stream: None, keep_alive: number % 2 == 0 });
        let start = |(caller, progress)| scope.spawn(move || client(caller, stop, progress));
        let running: Vec<_> = callers.zip(&progress).map(start).collect();
        let counts = || progress.iter().map(|count| count.load(Ordering::Relaxed)).collect::<Vec<usize>>();
        wait_until("not all clients have a session", || counts().iter().all(|count| *count > 0));
        let mut last = 0;
        for kill in 0..kills {
            wait_until("the worker is not replaced", || worker(&server.state) != last);
            last = worker(&server.state);
            // Waits for longer than until the first probe, so that the next worker is started without delay, and kills at
            // any point of a call.
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(100));
                server.request("tools/list", &json!({}));
            }
            std::thread::sleep(Duration::from_millis((kill as u64 * 37) % 200));
            signal(last, Signal::KILL);
        }
        wait_until("the last worker is not replaced", || worker(&server.state) != last);
        // The first of two calls may have started before.
        let before = counts();
        wait_until("a client does not continue", || {
            let has_failed = running.iter().any(std::thread::ScopedJoinHandle::is_finished);
            has_failed || counts().iter().zip(&before).all(|(now, before)| *now >= before + 2)
        });
        stop.store(true, Ordering::Relaxed);
        let totals = running.into_iter().map(|client| client.join().expect("client succeeds"));
        totals.fold((0, 0), |sum, counts| (sum.0 + counts.0, sum.1 + counts.1))
    });
    let status = status(&server.state);
    println!("{kills} kills, {clients} clients: {completed} calls completed, {lost} may have run");
    assert_eq!((&status["endpoint"], &status["restarts"]), (&line["endpoint"], &json!(kills)), "{status}");
    assert_eq!(status["last_reason"], "exited", "{status}");
    assert!(completed > clients * 2 && lost > 0 && lost <= kills * clients, "{completed} completed, {lost} lost");
    process_tree_with_sandbox(&server.state);
    let (code, state) = end(server);
    assert_eq!(code, Some(0));
    wait_until("processes remain", || processes_of(&state).is_empty());
    assert_eq!(std::fs::read_dir(state.path().join("launchers")).expect("directory exists").count(), 0);
}

#[test]
fn hung_worker_is_replaced_and_its_sessions_continue() {
    let (server, _) = up(&["--probe-interval-ms", "200", "--probe-timeout-ms", "2000"], &[]);
    let session = server.create_session("python", "x = 'preserved'");
    let hung = worker(&server.state);
    signal(hung, Signal::STOP);
    // The call waits for the next worker.
    assert_eq!(server.execute(&session, "print(x)")["stdout"], "preserved\n");
    assert!(!process::is_alive(hung));
    let status = status(&server.state);
    assert_eq!((&status["restarts"], &status["last_reason"]), (&json!(1), &json!("probe failed")), "{status}");
}

#[test]
fn hung_worker_is_killed_at_exit_and_its_sandboxes_end_before_their_lease() {
    let (server, _) = up(&[], &[("RINGFENCE_SESSIONS_LEASE_S", "600")]);
    server.create_session("python", "x = 1");
    process_tree_with_sandbox(&server.state);
    signal(worker(&server.state), Signal::STOP);
    let (code, state) = end(server);
    assert_eq!(code, Some(0));
    wait_until("launchers remain", || processes_of(&state).is_empty());
}

#[test]
fn supervisor_exits_with_a_reason_after_the_last_restart_and_sandboxes_end_before_their_lease() {
    let state = Arc::new(tempfile::tempdir().expect("directory is created"));
    let mut command = command(&state, &["--max-restarts", "1"], &[("RINGFENCE_SESSIONS_LEASE_S", "600")]);
    let mut process = command.stdout(Stdio::piped()).spawn().expect("process starts");
    let mut lines = BufReader::new(process.stdout.take().expect("stdout is piped")).lines();
    let mut next = || -> Value {
        let line = lines.next().expect("a line").expect("valid UTF-8");
        serde_json::from_str(&line).expect("valid JSON")
    };
    let endpoint = next()["endpoint"].as_str().expect("a string").to_owned();
    let address = endpoint.trim_start_matches("http://").trim_end_matches("/mcp");
    let mut caller = Caller { address, stream: None, keep_alive: false };
    assert!(matches!(caller.call(&json!({"code": "x = 1"})), Outcome::Completed(_)));
    let first = worker(&state);
    signal(first, Signal::KILL);
    wait_until("the worker is not replaced", || worker(&state) != first);
    let process_tree = process_tree_with_sandbox(&state);
    signal(worker(&state), Signal::KILL);
    let line = next();
    assert_eq!(process.wait().expect("process exits").code(), Some(75), "{line}");
    assert_eq!((&line["reason"], &line["count"], &line["signal"]), (&json!("exited"), &json!(1), &json!(9)), "{line}");
    assert_eq!(status(&state), Value::Null);
    assert_ended(&process_tree);
}

#[test]
fn hung_worker_ends_with_its_killed_supervisor() {
    let (mut server, _) = up(&[], &[("RINGFENCE_SESSIONS_LEASE_S", "1")]);
    server.create_session("python", "x = 1");
    let (hung, process_tree) = (worker(&server.state), process_tree_with_sandbox(&server.state));
    signal(hung, Signal::STOP);
    server.process.kill().expect("process is killed");
    let _ = server.process.wait();
    wait_until("the worker is still alive", || !process::is_alive(hung));
    assert_ended(&process_tree);
    assert!(TcpStream::connect(&server.address).is_err(), "the port still accepts connections");
}

#[test]
fn unsandboxed_server_ends_with_its_worker() {
    let directory = tempfile::tempdir().expect("directory is created");
    let (config, program) = (directory.path().join("ringfence.toml"), ringfence_testkit::fixture_path("bad_server.py"));
    // The server exits neither at the end of its input nor on SIGTERM.
    let entry = format!(
        "[servers.stubborn]\ncommand = \"python3\"\nargs = [{program:?}, \"ignore-sigterm\"]\nsandbox = false\n"
    );
    std::fs::write(&config, entry).expect("file is written");
    let options = ["--config", config.to_str().expect("valid UTF-8"), "--expect-tool", "stubborn__echo"];
    let (server, _) = up(&options, &[]);
    let unsandboxed = || {
        let is_server = |pid: &u32| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.contains("bad_server.py") && process::is_alive(*pid)
        };
        process_tree(&server.state).into_iter().filter(is_server).collect::<Vec<u32>>()
    };
    let (first, killed) = (unsandboxed(), worker(&server.state));
    assert_eq!(first.len(), 1, "{first:?}");
    signal(killed, Signal::KILL);
    wait_until("the server outlives its worker", || !process::is_alive(first[0]));
    wait_until("the worker is not replaced", || worker(&server.state) != killed);
    let response = server.call("stubborn__echo", &json!({"message": "x"}));
    assert_eq!(response["result"]["content"][0]["text"], "x", "{response}");
    // The server also ends with a worker that exits normally.
    let second = unsandboxed();
    assert_eq!(second.len(), 1, "{second:?}");
    end(server);
}

#[test]
fn busy_worker_is_not_replaced() {
    let directory = tempfile::tempdir().expect("directory is created");
    let volume = format!("--volume={}:/shared:rw", directory.path().display());
    let variables = [("RINGFENCE_SERVER_MAX_CONCURRENT_REQUESTS", "1")];
    let (server, _) = up(&["--probe-interval-ms", "20", "--probe-timeout-ms", "1000", &volume], &variables);
    let before = worker(&server.state);
    let code = "import os, time\nopen('/shared/started', 'w').close()\n\
                while not os.path.exists('/shared/go'): time.sleep(0.01)\nprint('done')";
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params":
        {"name": "execute_code", "arguments": {"code": code}}});
    let mut running = server.send("POST /mcp", &call.to_string());
    wait_until("the call does not start", || {
        running.set_nonblocking(true).expect("set the mode");
        // An early response is a refusal: a probe has used the only slot.
        if running.peek(&mut [0]).is_ok() {
            running = server.send("POST /mcp", &call.to_string());
        }
        directory.path().join("started").exists()
    });
    running.set_nonblocking(false).expect("set the mode");
    assert_eq!(server.request("tools/list", &json!({}))["error"]["code"], -32001, "the worker is not busy");
    // The time of several probes. Three failed ones would end the worker.
    std::thread::sleep(Duration::from_millis(200));
    std::fs::write(directory.path().join("go"), "").expect("file is written");
    let mut response = String::new();
    running.read_to_string(&mut response).expect("response is read");
    assert!(response.contains("done\\n"), "{response}");
    let status = status(&server.state);
    assert_eq!((&status["worker_pid"], &status["restarts"]), (&json!(before), &json!(0)), "{status}");
}

#[test]
fn worker_ends_with_its_killed_supervisor_and_sandboxes_with_their_lease() {
    let (mut server, _) = up(&[], &[("RINGFENCE_SESSIONS_LEASE_S", "1")]);
    server.create_session("python", "x = 1");
    let (worker, process_tree) = (worker(&server.state), process_tree_with_sandbox(&server.state));
    server.process.kill().expect("process is killed");
    let _ = server.process.wait();
    wait_until("the worker is still alive", || !process::is_alive(worker));
    let state = Arc::clone(&server.state);
    assert_ended(&process_tree);
    assert_eq!(processes_of(&state), [0; 0]);
    // Its files in the state directory do not affect the next supervisor.
    assert_eq!(status(&state), Value::Null);
    let (next, _) = up_in(state, &[], &[]);
    let session = next.create_session("python", "y = 2");
    assert_eq!(next.execute(&session, "print(y)")["stdout"], "2\n");
}

#[test]
fn next_supervisor_adopts_the_sessions_of_a_killed_one_within_their_lease() {
    let (mut server, _) = up(&[], &[]);
    let session = server.create_session("python", "x = 'preserved'");
    let worker = worker(&server.state);
    server.process.kill().expect("process is killed");
    let _ = server.process.wait();
    wait_until("the worker is still alive", || !process::is_alive(worker));
    let (next, _) = up_in(Arc::clone(&server.state), &[], &[]);
    assert_eq!(next.execute(&session, "print(x)")["stdout"], "preserved\n");
}
