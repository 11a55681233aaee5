//! The audit events of sessions.

use std::time::Duration;

use ringfence_core::{AuditEvent, AuditKind, Flavor, Principal, SessionId, Template};
use ringfence_egress::Rule;
use serde_json::json;

use crate::api::Status;
use crate::calls::Outcome;
use crate::outputs::Output;
use crate::state::EndReason;

pub(super) fn created(
    principal: &Principal,
    id: &SessionId,
    template: &Template,
    flavor: &Flavor,
    duration: Duration,
) -> AuditEvent {
    AuditEvent::new(AuditKind::SessionCreated, "ok")
        .by(principal, Some(id))
        .with_duration(duration)
        .with("template", &*template.name)
        .with("flavor", &*flavor.name)
}

pub(super) fn adopted(principal: &Principal, id: &SessionId) -> AuditEvent {
    AuditEvent::new(AuditKind::SessionAdopted, "ok").by(principal, Some(id))
}

/// A session of `principal` was evicted for a session of `newcomer`.
pub(super) fn evicted(principal: &Principal, id: &SessionId, newcomer: &Principal) -> AuditEvent {
    AuditEvent::new(AuditKind::SessionEvicted, "ok").by(principal, Some(id)).with("newcomer", newcomer.name())
}

pub(super) fn ended(principal: &Principal, id: &SessionId, reason: EndReason, age: Duration) -> AuditEvent {
    AuditEvent::new(AuditKind::SessionEnded, reason.name()).by(principal, Some(id)).with_duration(age)
}

/// A managed process was started, stopped or attached to.
pub(super) fn process(kind: AuditKind, principal: &Principal, id: &SessionId, pid: u32) -> AuditEvent {
    AuditEvent::new(kind, "ok").by(principal, Some(id)).with("pid", pid)
}

/// Bytes were transferred into or out of a session.
pub(super) fn transferred(kind: AuditKind, principal: &Principal, id: &SessionId, bytes: usize) -> AuditEvent {
    AuditEvent::new(kind, "ok").by(principal, Some(id)).with("bytes", bytes)
}

/// A call was queued. The tuple has the kind and the length of its text.
pub(super) fn call_started(
    principal: &Principal,
    id: &SessionId,
    (kind, length): (&'static str, usize),
    timeout: Duration,
) -> AuditEvent {
    AuditEvent::new(AuditKind::CallStarted, "ok")
        .by(principal, Some(id))
        .with("what", kind)
        .with("bytes_in", length)
        .with("timeout_s", timeout.as_secs_f64())
}

/// Rules were added to the network of a session.
pub(super) fn allowed(principal: &Principal, id: &SessionId, rules: &[Rule]) -> AuditEvent {
    let rules: Vec<String> = rules.iter().map(ToString::to_string).collect();
    AuditEvent::new(AuditKind::NetworkAllowed, "ok").by(principal, Some(id)).with("rules", rules)
}

pub(super) fn call_finished(principal: &Principal, id: &SessionId, outcome: &Outcome) -> AuditEvent {
    let length = |output: &Output| output.head.len() as u64 + output.tail.len() as u64 + output.dropped_bytes;
    let status = match outcome.status {
        Status::Ok => "ok",
        Status::Error => "error",
        Status::TimedOut => "timed_out",
        Status::Cancelled => "cancelled",
        Status::Killed => "killed",
    };
    AuditEvent::new(AuditKind::CallFinished, status)
        .by(principal, Some(id))
        .with_duration(outcome.duration)
        .with("bytes_out", length(&outcome.stdout) + length(&outcome.stderr))
        .with("exit_code", json!(outcome.exit_code))
}
