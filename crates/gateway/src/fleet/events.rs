//! What becomes of a server, in the audit and in lines for a person.

use std::time::Duration;

use ringfence_core::{AuditEvent, AuditKind};
use ringfence_entries::ServerEntry;
use ringfence_store::Audit;

use super::failure::{ServerFailure, sanitize};
use super::state_machine::{MAX_ATTEMPTS, Next, State};

/// How much of a message goes into one event.
const MAX_MESSAGE_BYTES: usize = 512;

pub(super) fn started(audit: &Audit, entry: &ServerEntry, took: Duration, tools: usize, is_again: bool) {
    let outcome = if is_again { "restarted" } else { "ok" };
    audit.record(event(AuditKind::ServerStarted, outcome, entry).with_duration(took).with("tools", tools));
    let again = if is_again { " again" } else { "" };
    tracing::info!("server {}: connected{again} after {:.1} s, {tools} tools", entry.name, took.as_secs_f64());
}

pub(super) fn failed(audit: &Audit, entry: &ServerEntry, failure: &ServerFailure, next: State, wait: Option<Duration>) {
    let message = sanitize(&failure.message.replace(['\n', '\t'], " "), MAX_MESSAGE_BYTES);
    let event = event(AuditKind::ServerFailed, failure.phase.name(), entry);
    audit.record(event.with("message", message.as_str()).with("status", next.status().name()));
    let (name, phase) = (&entry.name, failure.phase.name());
    match (next, wait) {
        (State::BackingOff(attempt) | State::Stopping(Next::BackOff(attempt)), Some(wait)) => {
            let wait = wait.as_secs_f64();
            tracing::warn!("server {name}: {phase}: {message}; attempt {} of {MAX_ATTEMPTS} in {wait} s", attempt + 1);
        }
        (State::Failed { .. } | State::Stopping(Next::Fail(_)), _) => {
            tracing::error!("server {name}: {phase}: {message}; given up");
        }
        _ => tracing::warn!("server {name}: {phase}: {message}; starting again"),
    }
}

pub(super) fn stopped(audit: &Audit, entry: &ServerEntry, outcome: &'static str, ran: Option<Duration>) {
    let event = event(AuditKind::ServerStopped, outcome, entry);
    audit.record(if let Some(ran) = ran { event.with_duration(ran) } else { event });
    tracing::info!("server {}: {}", entry.name, if outcome == "restart" { "stopped to start again" } else { outcome });
}

pub(super) fn abandoned(entry: &ServerEntry, within: Duration) {
    tracing::warn!("server {}: did not end within {} s; it is no longer waited for", entry.name, within.as_secs_f64());
}

fn event(kind: AuditKind, outcome: &'static str, entry: &ServerEntry) -> AuditEvent {
    let event = AuditEvent::new(kind, outcome);
    event.with("server", entry.name.as_str()).with("uuid", entry.uuid.as_str()).with("mode", entry.transport.mode())
}
