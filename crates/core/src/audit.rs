//! What happened, for whom and how it ended: one event for every step of a request.
//!
//! Recording never waits and never fails a request. What ran is not in it, only how much and how long.

mod detail;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use detail::Detail;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::identity::{Principal, SessionId};

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AuditKind {
    SessionCreated,
    /// Taken over from a server that died.
    SessionAdopted,
    SessionEvicted,
    SessionEnded,
    CallStarted,
    CallFinished,
    /// A file, a directory's listing, or an output that was too long for its answer.
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
    /// A protected name in a volume was created or replaced, possibly by a guest.
    ProtectedName,
    /// Events that were lost because too many came at once.
    EventsDropped,
}

impl AuditKind {
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
            Self::EventsDropped => "events_dropped",
        }
    }
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditEvent {
    /// Milliseconds since the epoch.
    pub time_ms: u64,
    /// Nobody where the caller is not known.
    pub principal: Option<Principal>,
    pub session: Option<SessionId>,
    pub kind: AuditKind,
    /// In one word: `ok`, a status, a reason, an error code.
    pub outcome: Cow<'static, str>,
    pub duration: Option<Duration>,
    pub detail: Detail,
}

impl AuditEvent {
    pub fn new(kind: AuditKind, outcome: impl Into<Cow<'static, str>>) -> Self {
        let (time_ms, outcome) = (now_ms(), outcome.into());
        Self { time_ms, principal: None, session: None, kind, outcome, duration: None, detail: Detail::default() }
    }

    /// A request that was not served, with the rule that forbids it.
    pub fn refusal(failure: &Failure) -> Self {
        let context: BTreeMap<&str, &str> =
            failure.context.iter().map(|(key, value)| (key.as_str(), truncate(value))).collect();
        let event = Self::new(AuditKind::Refused, failure.kind.name());
        event.with("message", truncate(&failure.message)).with("context", json!(context))
    }

    #[must_use]
    pub fn by(mut self, principal: &Principal, session: Option<&SessionId>) -> Self {
        self.principal = Some(principal.clone());
        self.session = session.cloned();
        self
    }

    /// It was then, and not when it is told.
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

    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.detail.add(key, value.into());
        self
    }
}

impl AuditEvent {
    /// For whoever watches the server at work.
    pub fn log(&self) {
        let Self { principal, session, kind, outcome, duration, detail, .. } = self;
        let principal = principal.as_ref().map(Principal::name);
        let session = session.as_ref().map(SessionId::as_str);
        let ms = duration.map(|duration| duration.as_millis());
        tracing::debug!(principal, session, %outcome, ms, %detail, "{}", kind.name());
    }
}

/// In milliseconds since the epoch.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The start of a text: a caller chooses some of it, and must not fill the disk.
fn truncate(text: &str) -> &str {
    const MAX_BYTES: usize = 512;
    let end = (0..=MAX_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

/// Lets strangers make one event a second at most: the audit keeps a bounded number, and must not lose those of
/// others to a flood.
#[derive(Debug, Default)]
pub struct AuditThrottle(Mutex<ThrottleState>);

#[derive(Debug, Default)]
struct ThrottleState {
    second: u64,
    dropped: u64,
}

impl AuditThrottle {
    /// The event, with how many were left out before it, or nothing if it is left out itself.
    pub fn admit(&self, event: AuditEvent) -> Option<AuditEvent> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let second = event.time_ms / 1000;
        if state.second == second {
            state.dropped += 1;
            return None;
        }
        let left_out = std::mem::take(&mut state.dropped);
        state.second = second;
        Some(if left_out > 0 { event.with("left_out_before", left_out) } else { event })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Kind;

    #[test]
    fn a_flood_of_strangers_is_one_event_a_second() {
        let sparing = AuditThrottle::default();
        let at = |time_ms| AuditEvent { time_ms, ..AuditEvent::new(AuditKind::AuthenticationFailed, "no_token") };
        let passed: Vec<AuditEvent> =
            [5000, 5001, 5999, 6000, 9000].into_iter().filter_map(|time_ms| sparing.admit(at(time_ms))).collect();
        assert_eq!(passed.iter().map(|event| event.time_ms).collect::<Vec<_>>(), [5000, 6000, 9000]);
        assert_eq!(passed[1].detail["left_out_before"], 2);
        assert!(passed[2].detail["left_out_before"].is_null());
    }

    #[test]
    fn what_a_caller_chose_is_cut_short() {
        let failure = Failure::new(Kind::Validation, "ü".repeat(1 << 20)).with("field", "ü".repeat(1 << 20));
        let event = AuditEvent::refusal(&failure);
        assert!(event.detail.to_string().len() < 2048);
        assert_eq!(event.outcome, "validation");
    }
}
