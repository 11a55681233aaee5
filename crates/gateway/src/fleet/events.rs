//! Records the starts, failures and stops of servers in the audit and in the log.

use std::time::Duration;

use ringfence_core::{AuditEvent, AuditKind};
use ringfence_entries::ServerEntry;
use ringfence_store::Audit;

use super::failure::{ServerFailure, sanitize};
use super::state_machine::{MAX_ATTEMPTS, Next, State};

/// Maximum length of a message in an event.
const MAX_MESSAGE_BYTES: usize = 512;

pub(super) fn started(audit: &Audit, entry: &ServerEntry, duration: Duration, tools: usize, is_restart: bool) {
    let outcome = if is_restart { "restarted" } else { "ok" };
    audit.record(event(AuditKind::ServerStarted, outcome, entry).with_duration(duration).with("tools", tools));
    let verb = if is_restart { "reconnected" } else { "connected" };
    tracing::info!("server {} {verb} after {:.1} s, {tools} tools", entry.name, duration.as_secs_f64());
}

pub(super) fn failed(
    audit: &Audit,
    entry: &ServerEntry,
    failure: &ServerFailure,
    next: State,
    delay: Option<Duration>,
) {
    let message = sanitize(&failure.message.replace(['\n', '\t'], " "), MAX_MESSAGE_BYTES);
    let event = event(AuditKind::ServerFailed, failure.phase.name(), entry);
    audit.record(event.with("message", message.as_str()).with("status", next.status().name()));
    let (name, phase) = (&entry.name, failure.phase.name());
    match (next, delay) {
        (State::BackingOff(attempt) | State::Stopping(Next::BackOff(attempt)), Some(delay)) => {
            let delay = delay.as_secs_f64();
            tracing::warn!(
                "server {name} failed in phase {phase}: {message}; attempt {} of {MAX_ATTEMPTS} in {delay} s",
                attempt + 1
            );
        }
        (State::Failed { .. } | State::Stopping(Next::Fail(_)), _) => {
            tracing::error!(
                "server {name} failed in phase {phase}: {message}; no more attempts until it is called or restarted"
            );
        }
        _ => tracing::warn!("server {name} failed in phase {phase}: {message}; restarting it"),
    }
}

pub(super) fn stopped(audit: &Audit, entry: &ServerEntry, outcome: &'static str, uptime: Option<Duration>) {
    let event = event(AuditKind::ServerStopped, outcome, entry);
    audit.record(if let Some(uptime) = uptime { event.with_duration(uptime) } else { event });
    let state = if outcome == "restart" { "stopped for a restart" } else { outcome };
    tracing::info!("server {} is {state}", entry.name);
}

pub(super) fn abandoned(entry: &ServerEntry, timeout: Duration) {
    tracing::warn!(
        "server {} did not stop within {} s; continuing without waiting for it",
        entry.name,
        timeout.as_secs_f64()
    );
}

fn event(kind: AuditKind, outcome: &'static str, entry: &ServerEntry) -> AuditEvent {
    let event = AuditEvent::new(kind, outcome);
    event.with("server", entry.name.as_str()).with("uuid", entry.uuid.as_str()).with("mode", entry.transport.mode())
}
