//! As a service: sockets that are passed in, and what the service manager is told. And as the part of an orchestrator.

use std::os::unix::net::UnixDatagram;
use std::path::Path;

use super::*;

/// Passes a socket on as a service manager does, says where it listens, and becomes the program.
const PASS_SOCKET: &str = "
import os, socket, sys
kind = socket.SOCK_STREAM if sys.argv[1] != 'udp' else socket.SOCK_DGRAM
passed = socket.socket(socket.AF_INET, kind)
passed.bind(('0.0.0.0' if sys.argv[1] == 'open' else '127.0.0.1', 0))
if sys.argv[1] in ('listens', 'open'):
    passed.listen()
print(passed.getsockname()[1], flush=True)
number = passed.detach()
if number != 3:
    os.dup2(number, 3)
    os.close(number)
os.set_inheritable(3, True)
os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
";

fn activated(state: &TempDir, socket: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", PASS_SOCKET, socket, BINARY]).args(arguments).env("RINGFENCE_STATE_DIR", state.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

fn heard(manager: &UnixDatagram) -> String {
    let mut message = [0; 1000];
    let length = manager.recv(&mut message).expect("it is told");
    String::from_utf8_lossy(&message[..length]).into_owned()
}

#[test]
fn a_socket_that_is_passed_in_is_served_and_the_service_manager_is_told() {
    for role in ["serve", "up"] {
        let state = Arc::new(tempfile::tempdir().expect("a directory"));
        let path = state.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("a socket");
        manager.set_read_timeout(Some(Duration::from_secs(60))).expect("it can be set");
        let mut command = activated(&state, "listens", &[role]);
        // The port is that of the socket, whatever else is said.
        command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "200000").env("RINGFENCE_PORT", "1");
        let mut process = command.spawn().expect("it starts");
        let mut lines = BufReader::new(process.stdout.take().expect("stdout is piped")).lines();
        let port = lines.next().expect("a port").expect("it is text");
        std::thread::spawn(move || lines.count());
        let server = Server { process, address: format!("127.0.0.1:{port}"), state };
        let mut told: Vec<String> = Vec::new();
        while told.iter().filter(|message| *message == "WATCHDOG=1").count() < 2
            || !told.iter().any(|message| message.starts_with("READY=1"))
        {
            told.push(heard(&manager));
        }
        assert!(told.contains(&format!("READY=1\nSTATUS=serving MCP at http://127.0.0.1:{port}/mcp")), "{told:?}");
        let session = server.create_session("bash", "x=kept");
        assert_eq!(server.execute(&session, "echo $x")["stdout"], "kept\n", "{role}");
        let (code, state) = end(server);
        assert_eq!(code, Some(0));
        while heard(&manager) != "STOPPING=1" {}
        assert_eq!(processes_of(&state), [0; 0], "{role}");
    }
}

#[test]
fn a_socket_that_cannot_be_served_is_refused() {
    for (socket, why) in [
        ("udp", "it is not a TCP socket"),
        ("silent", "it is not listening"),
        ("open", "refusing to listen on 0.0.0.0:"),
    ] {
        for role in ["serve", "up"] {
            let state = tempfile::tempdir().expect("a directory");
            let output = activated(&state, socket, &[role]).stderr(Stdio::piped()).output().expect("it runs");
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(125), "{role}: {said}");
            assert!(said.contains(why) && said.contains("hint:"), "{role}: {said}");
        }
    }
}

#[test]
fn the_units_are_good() {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/systemd");
    let directory = tempfile::tempdir().expect("a directory");
    for name in ["ringfence.service", "ringfence.socket"] {
        let text = std::fs::read_to_string(units.join(name)).expect("it is there");
        std::fs::write(directory.path().join(name), text.replace("/usr/local/bin/ringfence", BINARY)).expect("written");
    }
    let mut command = Command::new("systemd-analyze");
    let service = directory.path().join("ringfence.service");
    match command.args(["verify", "--man=no"]).arg(service).output() {
        Err(error) => ringfence_testkit::skip("the_units_are_good", &format!("systemd-analyze: {error}")),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            // Units of the host are looked at as well.
            let ours: Vec<&str> = said.lines().filter(|line| line.contains("ringfence.")).collect();
            assert!(ours.is_empty(), "{said}");
        }
    }
}

#[test]
fn an_orchestrator_of_a_few_lines_uses_it() {
    let state = tempfile::tempdir().expect("a directory");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/orchestrator.py");
    let mut command = Command::new("python3");
    let output = command.arg(example).arg(BINARY).env("RINGFENCE_STATE_DIR", state.path()).output().expect("it runs");
    let (said, complaints) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said} {complaints}");
    assert!(said.contains("the result: 42"), "{said}");
    assert_eq!(processes_of(&state), [0; 0]);
}
