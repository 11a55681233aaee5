//! What the audit is told of sessions.

use std::time::Duration;

use serde_json::json;

use super::call::Outcome;
use super::state::EndReason;
use super::{Output, Status};
use ringfence_core::Flavor;
use ringfence_core::Template;
use ringfence_core::{AuditEvent, AuditKind};
use ringfence_core::{Principal, SessionId};

pub(crate) fn created(
    principal: &Principal,
    id: &SessionId,
    template: &Template,
    flavor: &Flavor,
    took: Duration,
) -> AuditEvent {
    AuditEvent::new(AuditKind::SessionCreated, "ok")
        .by(principal, Some(id))
        .with_duration(took)
        .with("template", &*template.name)
        .with("flavor", &*flavor.name)
}

pub(crate) fn adopted(principal: &Principal, id: &SessionId) -> AuditEvent {
    AuditEvent::new(AuditKind::SessionAdopted, "ok").by(principal, Some(id))
}

/// `principal` is whose session it was, `newcomer` who needed the place.
pub(crate) fn evicted(principal: &Principal, id: &SessionId, newcomer: &Principal) -> AuditEvent {
    AuditEvent::new(AuditKind::SessionEvicted, "ok").by(principal, Some(id)).with("newcomer", newcomer.name())
}

pub(crate) fn ended(principal: &Principal, id: &SessionId, reason: EndReason, age: Duration) -> AuditEvent {
    AuditEvent::new(AuditKind::SessionEnded, reason.name()).by(principal, Some(id)).with_duration(age)
}

/// Something was done with a long-lived process.
pub(crate) fn process(kind: AuditKind, principal: &Principal, id: &SessionId, pid: u32) -> AuditEvent {
    AuditEvent::new(kind, "ok").by(principal, Some(id)).with("pid", pid)
}

/// So much was moved into or out of a session.
pub(crate) fn moved(kind: AuditKind, principal: &Principal, id: &SessionId, bytes: usize) -> AuditEvent {
    AuditEvent::new(kind, "ok").by(principal, Some(id)).with("bytes", bytes)
}

/// Of what kind the work is, and how long.
pub(crate) fn call_started(
    principal: &Principal,
    id: &SessionId,
    (what, length): (&'static str, usize),
    timeout: Duration,
) -> AuditEvent {
    AuditEvent::new(AuditKind::CallStarted, "ok")
        .by(principal, Some(id))
        .with("what", what)
        .with("bytes_in", length)
        .with("timeout_s", timeout.as_secs_f64())
}

pub(crate) fn call_finished(principal: &Principal, id: &SessionId, outcome: &Outcome, took: Duration) -> AuditEvent {
    let printed = |output: &Output| output.head.len() as u64 + output.tail.len() as u64 + output.dropped_bytes;
    let status = match outcome.status {
        Status::Ok => "ok",
        Status::Error => "error",
        Status::TimedOut => "timed_out",
        Status::Cancelled => "cancelled",
        Status::Killed => "killed",
    };
    AuditEvent::new(AuditKind::CallFinished, status)
        .by(principal, Some(id))
        .with_duration(took)
        .with("bytes_out", printed(&outcome.stdout) + printed(&outcome.stderr))
        .with("exit_code", json!(outcome.exit_code))
}
