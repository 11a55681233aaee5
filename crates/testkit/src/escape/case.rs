//! Runs a case, and checks the report of its script.

use std::collections::BTreeMap;
use std::process::Command;

use super::leftovers;
use super::report::{self, Finding};
use super::setup::Setup;
use super::sibling::Sibling;
use super::volumes::{self, Volumes};
use crate::process::{self, Outcome};
use crate::{User, skip};

/// A script with its sandbox and its arguments. Both may contain placeholders of [`Setup`].
pub struct Case {
    pub script: &'static str,
    /// Options of `ringfence run`.
    pub sandbox: &'static str,
    /// Arguments of the script, inside and outside.
    pub attack: &'static str,
    /// Number of attempts that the script reports; with fewer the test fails.
    pub attempts: usize,
    pub end: End,
    pub inherits: Inherits,
    pub volumes: Volumes,
}

/// The permitted end of a contained case.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With a report of every attempt.
    Reported,
    /// Also with the death of the sandbox at its memory limit, which `ringfence` reports on standard error.
    ReportedOrOutOfMemory,
}

/// Descriptors that the runner inherits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Inherits {
    Nothing,
    /// A file of the host as standard input, and as another descriptor that survives exec.
    HostFile,
}

/// Runs a case without a sandbox, as a control: each attempt must succeed, or be impossible on this host.
pub fn run_bare(test: &str, case: &Case) {
    if User::Root.skip_if_unavailable(test) {
        return;
    }
    let setup = Setup::new(User::Root);
    case.volumes.create(&setup);
    let outcome = process::run(&mut case.inherit(&setup, setup.bare(case.script, case.attack)));
    let left = leftovers::processes(&setup);
    leftovers::kill_processes(&setup);
    let findings = findings(test, &outcome);
    assert_eq!(outcome.code, 0, "the script failed: {}", outcome.stderr);
    assert_eq!(findings.len(), case.attempts, "attempts are missing: {findings:#?}");
    for (attempt, finding) in findings {
        match finding {
            Finding::Contained(saw) => panic!("the control of `{attempt}` fails: contained without a sandbox ({saw})"),
            Finding::LeftBehind => assert!(!left.is_empty(), "the control of `{attempt}` fails: nothing was left"),
            Finding::Escaped(_) | Finding::Unsupported(_) => {}
        }
    }
}

/// Runs a case in a sandbox: each attempt must be contained, a sibling sandbox must still work, and nothing may be
/// left on the host.
pub fn run_sandboxed(test: &str, case: &Case, user: User) {
    if user.skip_if_unavailable(test) {
        return;
    }
    let setup = Setup::new(user);
    case.volumes.create(&setup);
    let before = volumes::listing(&setup);
    let mut sibling = Sibling::start(user);
    let command = setup.sandboxed(case.sandbox, case.script, case.attack);
    let outcome = process::run(&mut case.inherit(&setup, command));
    leftovers::assert_none(&setup, outcome.pid);
    sibling.assert_works("after the case");
    assert_eq!(volumes::listing(&setup), before, "the volumes have changed");

    let findings = findings(test, &outcome);
    let escaped: Vec<_> = findings.iter().filter(|(_, finding)| matches!(finding, Finding::Escaped(_))).collect();
    assert!(escaped.is_empty(), "not contained: {escaped:#?}");
    if case.end == End::ReportedOrOutOfMemory && outcome.code == 137 {
        assert!(outcome.stderr.contains("memory limit"), "killed without a reason: {}", outcome.stderr);
        return;
    }
    assert_eq!(outcome.code, 0, "the script failed: {}", outcome.stderr);
    assert_eq!(findings.len(), case.attempts, "attempts are missing: {findings:#?}\n{}", outcome.stderr);
}

impl Case {
    fn inherit(&self, setup: &Setup, command: Command) -> Command {
        match self.inherits {
            Inherits::Nothing => command,
            Inherits::HostFile => setup.with_host_file_open(&command),
        }
    }
}

/// Parses the report, and records attempts that are impossible on this host as skips.
fn findings(test: &str, outcome: &Outcome) -> BTreeMap<String, Finding> {
    let findings = report::parse(&outcome.text());
    for (attempt, finding) in &findings {
        if let Finding::Unsupported(reason) = finding {
            skip(&format!("{test}: {attempt}"), reason);
        }
    }
    findings
}
