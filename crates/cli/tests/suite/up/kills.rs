//! Workers and supervisors that are killed and that hang.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

fn number(variable: &str, usual: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// What came of a call.
enum Outcome {
    Answered(Value),
    /// An error that says that it may have run.
    Lost,
}

/// A connection that is opened again once it was closed.
struct Caller<'a> {
    address: &'a str,
    stream: Option<BufReader<TcpStream>>,
    is_kept: bool,
}

impl Caller<'_> {
    fn call(&mut self, arguments: &Value) -> Outcome {
        let (address, kept) = (self.address, if self.is_kept { "keep-alive" } else { "close" });
        let connect = || BufReader::new(TcpStream::connect(address).expect("no connection is refused"));
        let mut stream = self.stream.take().unwrap_or_else(connect);
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params":
            {"name": "execute_code", "arguments": arguments}})
        .to_string();
        let length = request.len();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: {address}\r\nConnection: {kept}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        let sent = stream.get_mut().write_all(format!("{head}{request}").as_bytes());
        sent.expect("nothing is cut while a request is sent");
        let (mut length, mut is_closed, mut line) = (0, false, String::new());
        while stream.read_line(&mut line).expect("nothing is cut before the answer") > 2 {
            let lower = line.to_lowercase();
            length =
                lower.strip_prefix("content-length: ").map_or(length, |text| text.trim().parse().expect("a length"));
            is_closed |= lower.starts_with("connection: close");
            line.clear();
        }
        assert!(length > 0, "no answer: {line:?}");
        let mut body = vec![0; length];
        stream.read_exact(&mut body).expect("nothing is cut in the answer");
        self.stream = Some(stream).filter(|_| self.is_kept && !is_closed);
        let answer: Value = serde_json::from_slice(&body).expect("it is JSON");
        let error = answer["error"].as_str().or_else(|| answer["error"]["message"].as_str());
        match error {
            None => Outcome::Answered(answer),
            Some(error) => {
                assert!(error.contains("may have run"), "{answer}");
                Outcome::Lost
            }
        }
    }
}

/// Counts in a session of its own until it is told to stop. Gives how many calls were answered and how many were lost.
fn client(mut caller: Caller<'_>, stop: &AtomicBool, begun: &AtomicUsize) -> (usize, usize) {
    let session = loop {
        if let Outcome::Answered(answer) = caller.call(&json!({"code": "x = 0"})) {
            let session = answer["result"]["structuredContent"]["session_id"].as_str();
            break session.unwrap_or_else(|| panic!("no session: {answer}")).to_owned();
        }
    };
    begun.fetch_add(1, Ordering::Relaxed);
    let (mut answered, mut lost) = (0, 0);
    let (mut least, mut most) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        // It may have run, and is counted so.
        most += 1;
        match caller.call(&json!({"code": "x += 1; print(x)", "session_id": session})) {
            Outcome::Lost => lost += 1,
            Outcome::Answered(answer) => {
                answered += 1;
                let content = &answer["result"]["structuredContent"];
                let x: usize =
                    content["stdout"].as_str().and_then(|text| text.trim().parse().ok()).unwrap_or_else(|| {
                        panic!("the variable is lost, after {answered} answers and {lost} lost: {answer}");
                    });
                assert!(x > least && x <= most, "{x} is not after {least} and up to {most}");
                (least, most) = (x, x);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    (answered, lost)
}

/// `RINGFENCE_TEST_KILLS` and `RINGFENCE_TEST_CLIENTS` make it longer.
#[test]
fn clients_go_on_while_workers_are_killed_again_and_again() {
    let (kills, clients) = (number("RINGFENCE_TEST_KILLS", 10), number("RINGFENCE_TEST_CLIENTS", 20));
    let variables = [("RINGFENCE_MAX_SESSIONS", "1000"), ("RINGFENCE_SESSIONS_POOL", "python=1")];
    let (server, line) = up(&["--max-restarts", "1000", "--probe-interval-ms", "100"], &variables);
    let (stop, begun) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (answered, lost) = std::thread::scope(|scope| {
        let (address, stop, begun) = (&server.address, &stop, &begun);
        let callers = (0..clients).map(|number| Caller { address, stream: None, is_kept: number % 2 == 0 });
        let running: Vec<_> = callers.map(|caller| scope.spawn(move || client(caller, stop, begun))).collect();
        wait_until("not all clients have begun", || begun.load(Ordering::Relaxed) == clients);
        let mut last = 0;
        for kill in 0..kills {
            wait_until("no other takes its place", || worker(&server.state) != last);
            last = worker(&server.state);
            // Past its first probe, which is about what is asked here, so that the next is started at once; and at any
            // point of a call.
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(100));
                server.request("tools/list", &json!({}));
            }
            std::thread::sleep(Duration::from_millis((kill as u64 * 37) % 200));
            signal(last, Signal::KILL);
        }
        wait_until("the last is not replaced", || worker(&server.state) != last);
        std::thread::sleep(Duration::from_millis(500));
        stop.store(true, Ordering::Relaxed);
        let counts = running.into_iter().map(|client| client.join().expect("no client fails"));
        counts.fold((0, 0), |sum, counts| (sum.0 + counts.0, sum.1 + counts.1))
    });
    let told = status(&server.state);
    println!("{kills} kills, {clients} clients: {answered} calls answered, {lost} told that they may have run");
    assert_eq!((&told["endpoint"], &told["restarts"]), (&line["endpoint"], &json!(kills)), "{told}");
    assert_eq!(told["last_reason"], "exited", "{told}");
    assert!(answered > clients * 2 && lost > 0 && lost <= kills * clients, "{answered} answered, {lost} lost");
    family_with_sandbox(&server.state);
    let (code, state) = end(server);
    assert_eq!(code, Some(0));
    wait_until("processes are left", || processes_of(&state).is_empty());
    assert_eq!(std::fs::read_dir(state.path().join("launchers")).expect("it is there").count(), 0);
}

#[test]
fn a_worker_that_hangs_is_replaced_and_its_sessions_go_on() {
    let (server, _) = up(&["--probe-interval-ms", "200", "--probe-timeout-ms", "2000"], &[]);
    let session = server.create_session("python", "x = 'kept'");
    let hung = worker(&server.state);
    signal(hung, Signal::STOP);
    // It waits for the next worker.
    assert_eq!(server.execute(&session, "print(x)")["stdout"], "kept\n");
    assert!(!process::is_alive(hung));
    let told = status(&server.state);
    assert_eq!((&told["restarts"], &told["last_reason"]), (&json!(1), &json!("probe failed")), "{told}");
}

#[test]
fn a_worker_that_hangs_at_the_end_is_killed_and_its_sandboxes_do_not_wait_for_their_lease() {
    let (server, _) = up(&[], &[("RINGFENCE_SESSIONS_LEASE_S", "600")]);
    server.create_session("python", "x = 1");
    family_with_sandbox(&server.state);
    signal(worker(&server.state), Signal::STOP);
    let (code, state) = end(server);
    assert_eq!(code, Some(0));
    wait_until("launchers are left", || processes_of(&state).is_empty());
}

#[test]
fn after_the_last_restart_it_ends_and_tells_why_and_its_sandboxes_do_not_wait_for_their_lease() {
    let state = Arc::new(tempfile::tempdir().expect("a directory"));
    let mut command = command(&state, &["--max-restarts", "1"], &[("RINGFENCE_SESSIONS_LEASE_S", "600")]);
    let mut process = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(process.stdout.take().expect("stdout is piped")).lines();
    let mut next = || -> Value {
        let line = lines.next().expect("a line").expect("it is text");
        serde_json::from_str(&line).expect("it is JSON")
    };
    let endpoint = next()["endpoint"].as_str().expect("it is text").to_owned();
    let address = endpoint.trim_start_matches("http://").trim_end_matches("/mcp");
    let mut caller = Caller { address, stream: None, is_kept: false };
    assert!(matches!(caller.call(&json!({"code": "x = 1"})), Outcome::Answered(_)));
    let first = worker(&state);
    signal(first, Signal::KILL);
    wait_until("no other takes its place", || worker(&state) != first);
    let family = family_with_sandbox(&state);
    signal(worker(&state), Signal::KILL);
    let line = next();
    assert_eq!(process.wait().expect("it ends").code(), Some(75), "{line}");
    assert_eq!((&line["reason"], &line["count"], &line["signal"]), (&json!("exited"), &json!(1), &json!(9)), "{line}");
    assert_eq!(status(&state), Value::Null);
    assert_gone(&family);
}

#[test]
fn a_worker_that_hangs_ends_with_its_supervisor() {
    let (mut server, _) = up(&[], &[("RINGFENCE_SESSIONS_LEASE_S", "1")]);
    server.create_session("python", "x = 1");
    let (hung, family) = (worker(&server.state), family_with_sandbox(&server.state));
    signal(hung, Signal::STOP);
    server.process.kill().expect("it can be killed");
    let _ = server.process.wait();
    wait_until("the worker lives", || !process::is_alive(hung));
    assert_gone(&family);
    assert!(TcpStream::connect(&server.address).is_err(), "somebody listens");
}

#[test]
fn a_server_of_the_host_does_not_outlive_the_worker_that_started_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let (config, program) = (directory.path().join("ringfence.toml"), ringfence_testkit::fixture_path("bad_server.py"));
    // It ends neither with its input nor on a signal that it can hear.
    let entry =
        format!("[servers.deaf]\ncommand = \"python3\"\nargs = [{program:?}, \"ignore-sigterm\"]\nsandbox = false\n");
    std::fs::write(&config, entry).expect("it is written");
    let options = ["--config", config.to_str().expect("it is text"), "--expect-tool", "deaf__echo"];
    let (server, _) = up(&options, &[]);
    let of_host = || {
        let is_it = |pid: &u32| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.contains("bad_server.py") && process::is_alive(*pid)
        };
        family(&server.state).into_iter().filter(is_it).collect::<Vec<u32>>()
    };
    let (first, killed) = (of_host(), worker(&server.state));
    assert_eq!(first.len(), 1, "{first:?}");
    signal(killed, Signal::KILL);
    wait_until("it outlives its worker", || !process::is_alive(first[0]));
    wait_until("no other takes its place", || worker(&server.state) != killed);
    let answer = server.call("deaf__echo", &json!({"message": "x"}));
    assert_eq!(answer["result"]["content"][0]["text"], "x", "{answer}");
    // Nor does it outlive one that is asked to end.
    let second = of_host();
    assert_eq!(second.len(), 1, "{second:?}");
    end(server);
}

#[test]
fn a_worker_that_has_too_much_to_do_is_not_replaced() {
    let variables = [("RINGFENCE_SERVER_MAX_CONCURRENT_REQUESTS", "1")];
    let (server, _) = up(&["--probe-interval-ms", "50", "--probe-timeout-ms", "1000"], &variables);
    let before = worker(&server.state);
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params":
        {"name": "execute_code", "arguments": {"code": "import time; time.sleep(4); print('done')"}}});
    let mut answer = String::new();
    let busy = || server.request("tools/list", &json!({}))["error"]["code"] == -32001;
    // A probe may have had the only place.
    let mut running = server.send("POST /mcp", &call.to_string());
    wait_until("it is not busy", busy);
    running.read_to_string(&mut answer).expect("it is answered");
    assert!(answer.contains("done\\n"), "{answer}");
    let told = status(&server.state);
    assert_eq!((&told["worker_pid"], &told["restarts"]), (&json!(before), &json!(0)), "{told}");
}

#[test]
fn a_killed_supervisor_takes_its_worker_along_and_sandboxes_end_with_their_lease() {
    let (mut server, _) = up(&[], &[("RINGFENCE_SESSIONS_LEASE_S", "1")]);
    server.create_session("python", "x = 1");
    let (worker, family) = (worker(&server.state), family_with_sandbox(&server.state));
    server.process.kill().expect("it can be killed");
    let _ = server.process.wait();
    wait_until("the worker lives", || !process::is_alive(worker));
    let state = Arc::clone(&server.state);
    assert_gone(&family);
    assert_eq!(processes_of(&state), [0; 0]);
    // What it left in the state directory is in nobody's way.
    assert_eq!(status(&state), Value::Null);
    let (next, _) = up_in(state, &[], &[]);
    let session = next.create_session("python", "y = 2");
    assert_eq!(next.execute(&session, "print(y)")["stdout"], "2\n");
}

#[test]
fn a_supervisor_that_comes_soon_enough_finds_the_sessions_of_one_that_was_killed() {
    let (mut server, _) = up(&[], &[]);
    let session = server.create_session("python", "x = 'kept'");
    let worker = worker(&server.state);
    server.process.kill().expect("it can be killed");
    let _ = server.process.wait();
    wait_until("the worker lives", || !process::is_alive(worker));
    let (next, _) = up_in(Arc::clone(&server.state), &[], &[]);
    assert_eq!(next.execute(&session, "print(x)")["stdout"], "kept\n");
}
