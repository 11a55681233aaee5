//! Tries a case of the table and judges what its script says.

use std::collections::BTreeMap;
use std::process::Command;

use ringfence_testkit::{Who, skip};

use super::leftovers;
use super::report::{self, Finding};
use super::run::{self, Ended};
use super::sibling::Sibling;
use super::stage::Stage;
use super::volumes::{self, Volumes};

/// A script, the sandbox it is tried in, and what it needs.
pub(super) struct Case {
    pub(super) script: &'static str,
    /// Options of `ringfence run`.
    pub(super) sandbox: &'static str,
    /// The script's own arguments, inside and outside.
    pub(super) attack: &'static str,
    /// How many attempts the script reports; fewer means that some were lost.
    pub(super) attempts: usize,
    pub(super) end: End,
    pub(super) inherits: Inherits,
    pub(super) volumes: Volumes,
}

/// How a contained case may end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// With a line for every attempt.
    Reported,
    /// Or with the death of the sandbox for want of memory, said on stderr.
    ReportedOrOutOfMemory,
}

/// What the runner finds open when it starts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Inherits {
    Nothing,
    /// A file of the host's as stdin, and once more as a descriptor that survives exec.
    HostFile,
}

/// Without a sandbox every attempt must get through, or be impossible on this host.
pub(super) fn bare(test: &str, case: &Case) {
    if unavailable(test, Who::Root) {
        return;
    }
    let stage = Stage::set(Who::Root);
    case.volumes.make(&stage);
    let ended = run::to_end(&mut case.inherit(&stage, stage.bare(case.script, case.attack)));
    let left = leftovers::processes(&stage);
    leftovers::kill_processes(&stage);
    let findings = findings(test, &ended);
    assert_eq!(ended.code, 0, "the script failed: {}", ended.stderr);
    assert_eq!(findings.len(), case.attempts, "attempts are missing: {findings:#?}");
    for (attempt, finding) in findings {
        match finding {
            Finding::Contained(saw) => panic!("`{attempt}` cannot fail: contained without a sandbox ({saw})"),
            Finding::LeftBehind => assert!(!left.is_empty(), "`{attempt}` cannot fail: nothing was left behind"),
            Finding::Escaped(_) | Finding::Unsupported(_) => {}
        }
    }
}

/// In a sandbox every attempt must be contained, a sibling must stay well, and nothing may be left.
pub(super) fn sandboxed(test: &str, case: &Case, who: Who) {
    if unavailable(test, who) {
        return;
    }
    let stage = Stage::set(who);
    case.volumes.make(&stage);
    let before = volumes::listing(&stage);
    let mut sibling = Sibling::start(who);
    let command = stage.sandboxed(case.sandbox, case.script, case.attack);
    let ended = run::to_end(&mut case.inherit(&stage, command));
    leftovers::assert_none(&stage, ended.pid);
    sibling.assert_well("after the case");
    assert_eq!(volumes::listing(&stage), before, "the volumes are not as they were");

    let findings = findings(test, &ended);
    let escaped: Vec<_> = findings.iter().filter(|(_, finding)| matches!(finding, Finding::Escaped(_))).collect();
    assert!(escaped.is_empty(), "not contained: {escaped:#?}");
    if case.end == End::ReportedOrOutOfMemory && ended.code == 137 {
        assert!(ended.stderr.contains("memory limit"), "killed without saying why: {}", ended.stderr);
        return;
    }
    assert_eq!(ended.code, 0, "the script failed: {}", ended.stderr);
    assert_eq!(findings.len(), case.attempts, "attempts are missing: {findings:#?}\n{}", ended.stderr);
}

/// Says so, loudly, when this user cannot be tested here.
pub(super) fn unavailable(test: &str, who: Who) -> bool {
    let reason = who.unavailable();
    if let Some(reason) = &reason {
        skip(test, reason);
    }
    reason.is_some()
}

impl Case {
    fn inherit(&self, stage: &Stage, command: Command) -> Command {
        match self.inherits {
            Inherits::Nothing => command,
            Inherits::HostFile => stage.with_host_file_open(&command),
        }
    }
}

/// Reads the report, and says loudly what could not be tried on this host.
fn findings(test: &str, ended: &Ended) -> BTreeMap<String, Finding> {
    let findings = report::parse(&ended.stdout);
    for (attempt, finding) in &findings {
        if let Finding::Unsupported(why) = finding {
            skip(&format!("{test}: {attempt}"), why);
        }
    }
    findings
}
