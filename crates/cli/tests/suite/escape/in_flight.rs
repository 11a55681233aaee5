//! Case 69: descriptors in flight, which the kernel counts for each uid: a guest that shares its user's uid must leave
//! that user's other programs enough to pass descriptors.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::lchown;
use std::path::Path;
use std::process::{Command, Stdio};

use ringfence_testkit::Who;

use super::judge::unavailable;
use super::run;
use super::stage::Stage;

/// An ordinary user of this case's own, so that other tests are not disturbed.
const UID: u32 = 54322;

const WAYS: [&str; 2] = ["--only one-after-the-other", "--only waiting-senders"];

const SANDBOX: &str = "--nofile 4096 --pids 128";

/// Passes one descriptor, with the usual soft limit.
const PASS: &str = "
import array, resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
one, other = socket.socketpair()
one.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0]))])
print('passed')
";

/// The attacker, and the user whose other program must still work.
#[derive(Clone, Copy, PartialEq)]
enum User {
    /// The guest has the uid of this user.
    Ordinary,
    /// The guest has a uid that no other process has.
    Separate(Who),
}

impl User {
    fn stage(self) -> Stage {
        match self {
            Self::Separate(who) => Stage::set(who),
            Self::Ordinary => {
                let stage = Stage::set(Who::Root);
                lchown(stage.path("."), Some(UID), Some(UID)).expect("the owner is set");
                stage
            }
        }
    }

    /// The same command, as this user.
    fn own(self, command: Command) -> Command {
        if self != Self::Ordinary {
            return command;
        }
        let mut wrapper = Who::Root.program(Path::new("/usr/bin/setpriv"));
        wrapper.args([format!("--reuid={UID}"), format!("--regid={UID}"), "--clear-groups".into()]);
        wrapper.arg(command.get_program()).args(command.get_args());
        wrapper
    }

    fn program(self) -> Command {
        let python = Path::new("/usr/bin/python3");
        match self {
            Self::Separate(who) => who.program(python),
            Self::Ordinary => self.own(Who::Root.program(python)),
        }
    }
}

/// The output of another program of the user while the attack has as many descriptors in flight as it could get.
fn pass_during(user: User, attack: Command) -> String {
    let mut attack = user.own(attack);
    let mut attacker = run::start(attack.stdin(Stdio::piped()).stderr(Stdio::inherit()));
    let mut done = String::new();
    let stdout = attacker.stdout.take().expect("stdout is piped");
    BufReader::new(stdout).read_line(&mut done).expect("stdout is readable");
    let ended = run::to_end(user.program().args(["-c", PASS]));
    drop(attacker.stdin.take());
    assert_eq!(run::wait(&mut attacker), 0, "the script failed");
    assert!(done.contains("messages"), "the attack did not report: {done}");
    format!("{}{}", ended.stdout, ended.stderr)
}

fn assert_contained(test: &str, user: User) {
    if let User::Separate(who) = user
        && unavailable(test, who)
    {
        return;
    }
    for way in WAYS {
        let stage = user.stage();
        let said = pass_during(user, stage.sandboxed(SANDBOX, "c69_in_flight.py", way));
        assert_eq!(said, "passed\n", "{way}");
    }
}

#[test]
fn bare() {
    if unavailable("c69_in_flight::bare", Who::Root) {
        return;
    }
    for way in WAYS {
        let stage = User::Ordinary.stage();
        let said = pass_during(User::Ordinary, stage.bare("c69_in_flight.py", way));
        assert!(said.contains("Too many references"), "{way} cannot fail: {said}");
    }
}

#[test]
fn root() {
    assert_contained("c69_in_flight::root", User::Separate(Who::Root));
}

#[test]
fn plain() {
    if unavailable("c69_in_flight::plain", Who::Root) {
        return;
    }
    assert_contained("c69_in_flight::plain", User::Ordinary);
}

#[test]
fn sub() {
    assert_contained("c69_in_flight::sub", User::Separate(Who::Sub));
}
