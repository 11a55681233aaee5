//! Audit events: what happened, for which principal, and with which outcome.
//!
//! Every step of a request makes one event. Events contain sizes and durations, never the code or the data of a call.
//! Building an event does not block and cannot fail; the store writes it.

mod detail;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::sync::Mutex;
pub use detail::AuditDetail;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::identity::{Principal, SessionId};

/// The kind of an audit event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AuditKind {
    SessionCreated,
    /// A new server process took over a session that a dead one had left.
    SessionAdopted,
    SessionEvicted,
    SessionEnded,
    CallStarted,
    CallFinished,
    /// A file, a directory listing, or an output that was too long for the response of its call.
    FileRead,
    FileWritten,
    ProcessStarted,
    ProcessStopped,
    ProcessAttached,
    Refused,
    AuthenticationFailed,
    ServerStarted,
    ServerFailed,
    ServerStopped,
    ToolCalled,
    /// A protected file name in a volume was created or replaced, possibly by a guest.
    ProtectedName,
    /// A sandbox tried to connect to a host that no rule allows.
    NetworkRefused,
    /// A sandbox made the package mirror send a request to a registry, or the mirror refused that.
    PackageRequested,
    /// The rules of a sandbox were changed while it ran.
    NetworkAllowed,
    /// Events were lost because too many were recorded at once.
    EventsDropped,
    /// A damaged state database was replaced by a backup or by an empty database.
    DatabaseRestored,
}

impl AuditKind {
    /// The stable name of the kind in the audit log.
    pub fn name(self) -> &'static str {
        match self {
            Self::SessionCreated => "session_created",
            Self::SessionAdopted => "session_adopted",
            Self::SessionEvicted => "session_evicted",
            Self::SessionEnded => "session_ended",
            Self::CallStarted => "call_started",
            Self::CallFinished => "call_finished",
            Self::FileRead => "file_read",
            Self::FileWritten => "file_written",
            Self::ProcessStarted => "process_started",
            Self::ProcessStopped => "process_stopped",
            Self::ProcessAttached => "process_attached",
            Self::Refused => "refused",
            Self::AuthenticationFailed => "authentication_failed",
            Self::ServerStarted => "server_started",
            Self::ServerFailed => "server_failed",
            Self::ServerStopped => "server_stopped",
            Self::ToolCalled => "tool_called",
            Self::ProtectedName => "protected_name",
            Self::NetworkRefused => "network_refused",
            Self::PackageRequested => "package_requested",
            Self::NetworkAllowed => "network_allowed",
            Self::EventsDropped => "events_dropped",
            Self::DatabaseRestored => "database_restored",
        }
    }
}

/// One entry of the audit log.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditEvent {
    /// Milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// `None` for unauthenticated callers and for events without a caller.
    pub principal: Option<Principal>,
    pub session: Option<SessionId>,
    pub kind: AuditKind,
    /// A short stable name: `ok`, a status, a reason or an error code.
    pub outcome: Cow<'static, str>,
    pub duration: Option<Duration>,
    pub detail: AuditDetail,
}

impl AuditEvent {
    /// Creates an event with the current time.
    pub fn new(kind: AuditKind, outcome: impl Into<Cow<'static, str>>) -> Self {
        let (time_ms, outcome) = (now_ms(), outcome.into());
        Self { time_ms, principal: None, session: None, kind, outcome, duration: None, detail: AuditDetail::default() }
    }

    /// Creates the event of a refused request from its failure.
    pub fn refusal(failure: &Failure) -> Self {
        let context: BTreeMap<&str, &str> =
            failure.context.iter().map(|(key, value)| (key.as_str(), truncate(value))).collect();
        let event = Self::new(AuditKind::Refused, failure.kind.name());
        event.with("message", truncate(&failure.message)).with("context", json!(context))
    }

    /// Sets the principal that caused the event, and the session that it concerns.
    #[must_use]
    pub fn by(mut self, principal: &Principal, session: Option<&SessionId>) -> Self {
        self.principal = Some(principal.clone());
        self.session = session.cloned();
        self
    }

    /// Replaces the time of creation, for an event that is recorded later than it happened.
    #[must_use]
    pub fn at_time(mut self, time_ms: u64) -> Self {
        self.time_ms = time_ms;
        self
    }

    #[must_use]
    pub fn with_duration(mut self, duration: Duration) -> Self {
        self.duration = Some(duration);
        self
    }

    /// Adds a field to the detail.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.detail.add(key, value.into());
        self
    }

    /// Logs the event at level debug.
    pub fn log(&self) {
        let Self { principal, session, kind, outcome, duration, detail, .. } = self;
        let principal = principal.as_ref().map(Principal::name);
        let session = session.as_ref().map(SessionId::as_str);
        let ms = duration.map(|duration| duration.as_millis());
        tracing::debug!(principal, session, %outcome, ms, %detail, "{}", kind.name());
    }
}

/// The current time in milliseconds since the Unix epoch.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the start of a text. Callers choose some of these texts and must not be able to fill the disk with them.
fn truncate(text: &str) -> &str {
    const MAX_BYTES: usize = 512;
    let end = (0..=MAX_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

/// Limits the events of unauthenticated clients to one per second.
///
/// The audit log has a maximum size. Without this limit a flood of such events would displace those of others.
#[derive(Debug, Default)]
pub struct AuditThrottle(Mutex<ThrottleState>);

#[derive(Debug, Default)]
struct ThrottleState {
    second: u64,
    dropped: u64,
}

impl AuditThrottle {
    /// Returns the event with the number of events dropped before it, or `None` if the event itself is dropped.
    pub fn admit(&self, event: AuditEvent) -> Option<AuditEvent> {
        let mut state = self.0.lock();
        let second = event.time_ms / 1000;
        if state.second == second {
            state.dropped += 1;
            return None;
        }
        let dropped = std::mem::take(&mut state.dropped);
        state.second = second;
        Some(if dropped > 0 { event.with("left_out_before", dropped) } else { event })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Kind;

    #[test]
    fn flood_of_unauthenticated_requests_makes_one_event_per_second() {
        let throttle = AuditThrottle::default();
        let event_at = |time_ms| AuditEvent { time_ms, ..AuditEvent::new(AuditKind::AuthenticationFailed, "no_token") };
        let admitted: Vec<AuditEvent> = [5000, 5001, 5999, 6000, 9000]
            .into_iter()
            .filter_map(|time_ms| throttle.admit(event_at(time_ms)))
            .collect();
        assert_eq!(admitted.iter().map(|event| event.time_ms).collect::<Vec<_>>(), [5000, 6000, 9000]);
        assert_eq!(admitted[1].detail["left_out_before"], 2);
        assert!(admitted[2].detail["left_out_before"].is_null());
    }

    #[test]
    fn long_texts_of_callers_are_truncated() {
        let failure = Failure::new(Kind::Validation, "ü".repeat(1 << 20)).with("field", "ü".repeat(1 << 20));
        let event = AuditEvent::refusal(&failure);
        assert!(event.detail.to_string().len() < 2048);
        assert_eq!(event.outcome, "validation");
    }
}
