//! Case 54: the proxy is killed, and with it ends all traffic.

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use ringfence_testkit::escape::{Setup, TOKEN_VARIABLE, leftovers};
use ringfence_testkit::{User, process};

const SCRIPT: &str = "c54_beacon.py";

/// A server that a beacon is to reach.
struct Server(TcpListener);

impl Server {
    fn start() -> Self {
        Self(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port"))
    }

    fn port(&self) -> u16 {
        self.0.local_addr().expect("it is bound").port()
    }

    /// Starts a runner, waits until its beacon is heard, and kills the runner alone.
    fn hear_and_kill(&self, runner: &mut Command) -> (Child, TcpStream) {
        let mut runner = process::start(runner);
        let (mut stream, _) = self.0.accept().expect("the beacon connects");
        stream.read_exact(&mut [0; 3]).expect("the beacon is heard");
        runner.kill().expect("the runner is ours");
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
    // A shell that waits for it stands in for the runner.
    let mut shell = User::Root.program(Path::new("/bin/sh"));
    shell.env(TOKEN_VARIABLE, setup.token()).args(["-c", r#""$@"; exit"#, "sh"]);
    shell.arg(beacon.get_program()).args(beacon.get_args());
    let (_, mut stream) = server.hear_and_kill(&mut shell);
    stream.read_exact(&mut [0; 10]).expect("this cannot fail: a beacon ends with its runner without a sandbox");
    leftovers::kill_processes(&setup);
}

fn sandboxed(test: &str, who: User) {
    if who.skip_if_unavailable(test) {
        return;
    }
    let (setup, server) = (Setup::new(who), Server::start());
    let port = server.port();
    let options = format!("--network allow=127.0.0.1:{port}");
    let mut command = setup.sandboxed(&options, SCRIPT, &format!("--port {port} --proxy {{proxy}}"));
    let (_, mut stream) = server.hear_and_kill(&mut command);
    leftovers::assert_no_processes(&setup);
    // What was on its way may still come; then the connection is at its end.
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a deadline");
    let ended = match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    };
    assert!(ended, "the tunnel outlives the proxy");
    server.0.set_nonblocking(true).expect("a look that does not wait");
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
