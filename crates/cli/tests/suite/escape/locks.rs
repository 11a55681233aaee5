//! Case 65: a guest that locks a volume and everything in it does not prevent the start of other sandboxes.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use ringfence_testkit::Who;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::judge::unavailable;
use super::stage::Stage;
use super::volumes::{self, Volumes};
use super::{leftovers, run};

const SCRIPT: &str = "c65_locks.py";

/// Half of the time that a sandbox would wait for a lock.
const AT_ONCE: Duration = Duration::from_millis(2500);

fn start_beside_locks(test: &str, who: Who, options: &str) {
    if unavailable(test, who) {
        return;
    }
    let stage = Stage::set(who);
    Volumes::WithProtectedNames.make(&stage);
    let before = volumes::listing(&stage);
    let mut locker = stage.sandboxed(options, SCRIPT, volumes::ARGUMENTS);
    let mut locker = run::start(locker.stdin(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(locker.stdout.take().expect("stdout is piped")).read_line(&mut line).expect("stdout is readable");
    assert!(line.contains("locks"), "{line}");
    // The proof that the test can fail.
    let top = File::open(stage.path("volumes/rw")).expect("the volume is there");
    assert_eq!(flock(&top, FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK), "nothing is locked");

    let start = Instant::now();
    let mut second = stage.ringfence(options);
    let second = run::to_end(second.args(["--", "ls", "/volumes/rw"]));
    let took = start.elapsed();
    assert_eq!(second.code, 0, "{}", second.stderr);
    assert!(took < AT_ONCE, "the start waited for {took:?}");
    drop(locker.stdin.take());
    assert_eq!(run::wait(&mut locker), 0);
    leftovers::assert_no_processes(&stage);
    assert_eq!(volumes::listing(&stage), before, "the volumes are not as they were");
}

macro_rules! users {
    ($($name:ident: $who:expr, $options:expr;)*) => {
        $(#[test]
        fn $name() {
            start_beside_locks(concat!("c65_locks::", stringify!($name)), $who, $options);
        })*
    };
}

users! {
    root: Who::Root, volumes::OPTIONS;
    plain: Who::Plain, volumes::OPTIONS;
    sub: Who::Sub, volumes::OPTIONS;
    strict_root: Who::Root, volumes::STRICT_OPTIONS;
    strict_plain: Who::Plain, volumes::STRICT_OPTIONS;
    strict_sub: Who::Sub, volumes::STRICT_OPTIONS;
}
