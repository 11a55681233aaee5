//! The same test for everybody who may start a sandbox.

use std::path::Path;

use ringfence_testkit::{Outcome, Who, skip};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_ringfence");

/// Runs a check as root, as an ordinary user, and as one with subordinate ids.
pub(crate) fn for_everyone(test: &str, check: impl Fn(Who)) {
    for who in Who::ALL {
        match who.unavailable() {
            Some(reason) => skip(&format!("{test} as {who:?}"), &reason),
            None => check(who),
        }
    }
}

/// `ringfence run OPTIONS -- COMMAND` as somebody.
pub(crate) fn run(who: Who, options: &[&str], command: &[&str]) -> Outcome {
    who.run(Path::new(BINARY), options, command)
}

/// The same for a Python program.
pub(crate) fn python(who: Who, options: &[&str], program: &str) -> Outcome {
    run(who, options, &["python3", "-c", program])
}
