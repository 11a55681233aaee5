//! Case 54: if the proxy is killed, all traffic of the sandbox ends.

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use ringfence_testkit::escape::{Setup, TOKEN_VARIABLE, leftovers};
use ringfence_testkit::{User, process};

const SCRIPT: &str = "c54_beacon.py";

/// A server to which the beacon of the script connects.
struct Server(TcpListener);

impl Server {
    fn start() -> Self {
        Self(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("free port"))
    }

    fn port(&self) -> u16 {
        self.0.local_addr().expect("listener is bound").port()
    }

    /// Starts a runner, waits until its beacon has sent data, and kills only the runner.
    fn receive_and_kill(&self, runner: &mut Command) -> (Child, TcpStream) {
        let mut runner = process::start(runner);
        let (mut stream, _) = self.0.accept().expect("beacon connects");
        stream.read_exact(&mut [0; 3]).expect("beacon sends data");
        runner.kill().expect("runner is a child of this process");
        process::wait(&mut runner);
        (runner, stream)
    }
}

#[test]
fn bare() {
    if User::Root.skip_if_unavailable("c54_beacon::bare") {
        return;
    }
    let (setup, server) = (Setup::new(User::Root), Server::start());
    let beacon = setup.bare(SCRIPT, &format!("--port {}", server.port()));
    // A shell that waits for the beacon replaces the runner.
    let mut shell = User::Root.program(Path::new("/bin/sh"));
    shell.env(TOKEN_VARIABLE, setup.token()).args(["-c", r#""$@"; exit"#, "sh"]);
    shell.arg(beacon.get_program()).args(beacon.get_args());
    let (_, mut stream) = server.receive_and_kill(&mut shell);
    stream
        .read_exact(&mut [0; 10])
        .expect("the case cannot fail: a beacon ends with its runner even without a sandbox");
    leftovers::kill_processes(&setup);
}

fn sandboxed(test: &str, user: User) {
    if user.skip_if_unavailable(test) {
        return;
    }
    let (setup, server) = (Setup::new(user), Server::start());
    let port = server.port();
    let options = format!("--network allow=127.0.0.1:{port}");
    let mut command = setup.sandboxed(&options, SCRIPT, &format!("--port {port} --proxy {{proxy}}"));
    let (_, mut stream) = server.receive_and_kill(&mut command);
    leftovers::assert_no_processes(&setup);
    // Data in transit may still arrive; then the connection must end.
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("read timeout is set");
    let is_closed = match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    };
    assert!(is_closed, "the tunnel outlives the proxy");
    server.0.set_nonblocking(true).expect("listener becomes non-blocking");
    assert!(server.0.accept().is_err(), "a new tunnel was opened without the proxy");
}

#[test]
fn root() {
    sandboxed("c54_beacon::root", User::Root);
}

#[test]
fn plain() {
    sandboxed("c54_beacon::plain", User::Plain);
}

#[test]
fn sub() {
    sandboxed("c54_beacon::sub", User::WithSubids);
}
