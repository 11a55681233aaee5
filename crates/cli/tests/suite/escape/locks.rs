//! Case 65: a guest that locks a volume and everything in it does not prevent the start of other sandboxes.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use ringfence_testkit::escape::volumes::{self, Volumes};
use ringfence_testkit::escape::{Setup, leftovers};
use ringfence_testkit::{User, process};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

const SCRIPT: &str = "c65_locks.py";

/// Maximum start time of the second sandbox: half of the time that a sandbox waits for a lock.
const MAX_START_TIME: Duration = Duration::from_millis(2500);

fn assert_starts_despite_locks(test: &str, user: User, options: &str) {
    if user.skip_if_unavailable(test) {
        return;
    }
    let setup = Setup::new(user);
    Volumes::WithProtectedNames.create(&setup);
    let before = volumes::listing(&setup);
    let mut locker = setup.sandboxed(options, SCRIPT, volumes::ARGUMENTS);
    let mut locker = process::start(locker.stdin(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(locker.stdout.take().expect("stdout is piped")).read_line(&mut line).expect("stdout is readable");
    assert!(line.contains("locks"), "{line}");
    // Control: the volume is locked.
    let top = File::open(setup.path("volumes/rw")).expect("volume exists");
    assert_eq!(flock(&top, FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK), "nothing is locked");

    let start = Instant::now();
    let mut second = setup.ringfence(options);
    let second = process::run(second.args(["--", "ls", "/volumes/rw"]));
    let took = start.elapsed();
    assert_eq!(second.code, 0, "{}", second.stderr);
    assert!(took < MAX_START_TIME, "the start took {took:?}");
    drop(locker.stdin.take());
    assert_eq!(process::wait(&mut locker), 0);
    leftovers::assert_no_processes(&setup);
    assert_eq!(volumes::listing(&setup), before, "the volumes have changed");
}

macro_rules! users {
    ($($name:ident: $user:expr, $options:expr;)*) => {
        $(#[test]
        fn $name() {
            assert_starts_despite_locks(concat!("c65_locks::", stringify!($name)), $user, $options);
        })*
    };
}

users! {
    root: User::Root, volumes::OPTIONS;
    plain: User::Plain, volumes::OPTIONS;
    sub: User::WithSubids, volumes::OPTIONS;
    strict_root: User::Root, volumes::STRICT_OPTIONS;
    strict_plain: User::Plain, volumes::STRICT_OPTIONS;
    strict_sub: User::WithSubids, volumes::STRICT_OPTIONS;
}
