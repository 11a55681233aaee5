//! Case 69: file descriptors in flight, which the kernel counts per uid. A guest that shares the uid of its user must
//! not prevent other programs of that user from passing descriptors.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::lchown;
use std::path::Path;
use std::process::{Command, Stdio};

use ringfence_testkit::escape::Setup;
use ringfence_testkit::{User, process};

/// Uids that only these tests use: the kernel counts descriptors in flight per uid, and tests run in parallel.
const BARE_UID: u32 = 54322;
const PLAIN_UID: u32 = 54324;

/// Arguments of the script, one for each attack.
const ATTACKS: [&str; 2] = ["--only one-after-the-other", "--only waiting-senders"];

const SANDBOX: &str = "--nofile 4096 --pids 128";

/// Python program that passes one descriptor, with the usual soft limit of open files.
const PASS: &str = "
import array, resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
sender, receiver = socket.socketpair()
sender.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0]))])
print('passed')
";

/// The attacker, and the user whose other program must still work.
#[derive(Clone, Copy)]
enum Attacker {
    /// The guest has the uid of an ordinary user.
    Ordinary(u32),
    /// The guest has a uid that no other process has.
    Separate(User),
}

impl Attacker {
    fn setup(self) -> Setup {
        match self {
            Self::Separate(who) => Setup::new(who),
            Self::Ordinary(uid) => {
                let setup = Setup::new(User::Root);
                lchown(setup.path("."), Some(uid), Some(uid)).expect("owner is set");
                setup
            }
        }
    }

    /// Wraps a command: it runs as this user.
    fn run_as(self, command: Command) -> Command {
        let Self::Ordinary(uid) = self else { return command };
        let mut wrapper = User::Root.program(Path::new("/usr/bin/setpriv"));
        wrapper.args([format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".into()]);
        wrapper.arg(command.get_program()).args(command.get_args());
        wrapper
    }

    fn program(self) -> Command {
        let python = Path::new("/usr/bin/python3");
        match self {
            Self::Separate(who) => who.program(python),
            Self::Ordinary(_) => self.run_as(User::Root.program(python)),
        }
    }
}

/// Returns the output of another program of the user while the attack has as many descriptors in flight as possible.
fn pass_during(user: Attacker, attack: Command) -> String {
    let mut attack = user.run_as(attack);
    let mut attacker = process::start(attack.stdin(Stdio::piped()).stderr(Stdio::inherit()));
    let mut line = String::new();
    let stdout = attacker.stdout.take().expect("stdout is piped");
    BufReader::new(stdout).read_line(&mut line).expect("stdout is readable");
    let outcome = process::run(user.program().args(["-c", PASS]));
    drop(attacker.stdin.take());
    assert_eq!(process::wait(&mut attacker), 0, "the script failed");
    assert!(line.contains("messages"), "the attack did not report: {line}");
    format!("{}{}", outcome.text(), outcome.stderr)
}

fn assert_contained(test: &str, user: Attacker) {
    if let Attacker::Separate(who) = user
        && who.skip_if_unavailable(test)
    {
        return;
    }
    for attack in ATTACKS {
        let setup = user.setup();
        let output = pass_during(user, setup.sandboxed(SANDBOX, "c69_in_flight.py", attack));
        assert_eq!(output, "passed\n", "{attack}");
    }
}

#[test]
fn bare() {
    if User::Root.skip_if_unavailable("c69_in_flight::bare") {
        return;
    }
    for attack in ATTACKS {
        let attacker = Attacker::Ordinary(BARE_UID);
        let setup = attacker.setup();
        let output = pass_during(attacker, setup.bare("c69_in_flight.py", attack));
        assert!(output.contains("Too many references"), "the case {attack} cannot fail: {output}");
    }
}

#[test]
fn root() {
    assert_contained("c69_in_flight::root", Attacker::Separate(User::Root));
}

#[test]
fn plain() {
    if User::Root.skip_if_unavailable("c69_in_flight::plain") {
        return;
    }
    assert_contained("c69_in_flight::plain", Attacker::Ordinary(PLAIN_UID));
}

#[test]
fn sub() {
    assert_contained("c69_in_flight::sub", Attacker::Separate(User::WithSubids));
}
