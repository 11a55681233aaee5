//! Supervisors and servers as services (passed sockets, notifications to the service manager), and in an orchestrator.

use std::os::unix::net::UnixDatagram;
use std::path::Path;

use super::*;

/// Passes a socket like a service manager, prints its port, and executes the program.
const PASS_SOCKET: &str = "
import os, socket, sys
kind = socket.SOCK_STREAM if sys.argv[1] != 'udp' else socket.SOCK_DGRAM
passed = socket.socket(socket.AF_INET, kind)
passed.bind(('0.0.0.0' if sys.argv[1] == 'open' else '127.0.0.1', 0))
if sys.argv[1] in ('listening', 'open'):
    passed.listen()
print(passed.getsockname()[1], flush=True)
descriptor = passed.detach()
if descriptor != 3:
    os.dup2(descriptor, 3)
    os.close(descriptor)
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

fn receive(manager: &UnixDatagram) -> String {
    let mut message = [0; 1000];
    let length = manager.recv(&mut message).expect("a notification");
    String::from_utf8_lossy(&message[..length]).into_owned()
}

#[test]
fn passed_socket_is_served_and_the_service_manager_is_notified() {
    for role in ["serve", "up"] {
        let state = Arc::new(tempfile::tempdir().expect("directory is created"));
        let path = state.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("a socket");
        manager.set_read_timeout(Some(Duration::from_secs(60))).expect("timeout is set");
        let mut command = activated(&state, "listening", &[role]);
        // The port of the socket takes precedence over the configured one.
        command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "200000").env("RINGFENCE_PORT", "1");
        let mut process = command.spawn().expect("process starts");
        let mut lines = BufReader::new(process.stdout.take().expect("stdout is piped")).lines();
        let port = lines.next().expect("a port").expect("valid UTF-8");
        std::thread::spawn(move || lines.count());
        let server = Server { process, address: format!("127.0.0.1:{port}"), state };
        let mut notifications: Vec<String> = Vec::new();
        while notifications.iter().filter(|message| *message == "WATCHDOG=1").count() < 2
            || !notifications.iter().any(|message| message.starts_with("READY=1"))
        {
            notifications.push(receive(&manager));
        }
        assert!(
            notifications.contains(&format!("READY=1\nSTATUS=serving MCP at http://127.0.0.1:{port}/mcp")),
            "{notifications:?}"
        );
        let session = server.create_session("bash", "x=preserved");
        assert_eq!(server.execute(&session, "echo $x")["stdout"], "preserved\n", "{role}");
        let (code, state) = end(server);
        assert_eq!(code, Some(0));
        while receive(&manager) != "STOPPING=1" {}
        assert_eq!(processes_of(&state), [0; 0], "{role}");
    }
}

#[test]
fn unusable_passed_socket_is_refused() {
    for (socket, reason) in [
        ("udp", "it is not a TCP socket"),
        ("silent", "it is not listening"),
        ("open", "refusing to listen on 0.0.0.0:"),
    ] {
        for role in ["serve", "up"] {
            let state = tempfile::tempdir().expect("directory is created");
            let output = activated(&state, socket, &[role]).stderr(Stdio::piped()).output().expect("command runs");
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(125), "{role}: {stderr}");
            assert!(stderr.contains(reason) && stderr.contains("hint:"), "{role}: {stderr}");
        }
    }
}

#[test]
fn systemd_units_are_valid() {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/systemd");
    let directory = tempfile::tempdir().expect("directory is created");
    for name in ["ringfence.service", "ringfence.socket"] {
        let text = std::fs::read_to_string(units.join(name)).expect("file exists");
        std::fs::write(directory.path().join(name), text.replace("/usr/local/bin/ringfence", BINARY))
            .expect("file is written");
    }
    let mut command = Command::new("systemd-analyze");
    let service = directory.path().join("ringfence.service");
    match command.args(["verify", "--man=no"]).arg(service).output() {
        Err(error) => ringfence_testkit::skip("systemd_units_are_valid", &format!("systemd-analyze: {error}")),
        Ok(output) => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            // systemd-analyze also reports problems of the host's units.
            let problems: Vec<&str> = stderr.lines().filter(|line| line.contains("ringfence.")).collect();
            assert!(problems.is_empty(), "{stderr}");
        }
    }
}

#[test]
fn example_orchestrator_works() {
    let state = tempfile::tempdir().expect("directory is created");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/orchestrator.py");
    let mut command = Command::new("python3");
    let output =
        command.arg(example).arg(BINARY).env("RINGFENCE_STATE_DIR", state.path()).output().expect("command runs");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout} {stderr}");
    assert!(stdout.contains("the result: 42"), "{stdout}");
    assert_eq!(processes_of(&state), [0; 0]);
}
