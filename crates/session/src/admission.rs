//! Decides whether a session may start beside those that live, and which idle sessions it replaces.
//!
//! The decision has no side effects; [`SessionSlots`] applies it.

mod slots;

use std::time::Duration;

use ringfence_config::SessionSettings;
use ringfence_core::{Failure, Kind, Principal, SessionId, bytes};

pub(crate) use slots::{SessionSlots, Slot};

/// The limits of the server. `None` means unlimited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServiceLimits {
    pub sessions: usize,
    pub sessions_per_principal: Option<usize>,
    /// The maximum sum of the memory limits of all sessions.
    pub memory_bytes: Option<u64>,
    /// Whether idle sessions are ended for new ones.
    pub evict_idle: bool,
}

impl From<&SessionSettings> for ServiceLimits {
    fn from(settings: &SessionSettings) -> Self {
        Self {
            sessions: settings.max_sessions,
            sessions_per_principal: settings.max_sessions_per_principal,
            memory_bytes: settings.max_total_memory_bytes,
            evict_idle: settings.evict_idle,
        }
    }
}

/// A live session, as far as the decision needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LiveSession {
    pub id: SessionId,
    pub principal: Principal,
    pub memory_bytes: u64,
    /// Seconds since the epoch.
    pub created: u64,
    pub last_used_ms: u64,
    /// Whether a call runs or waits in it, or it is starting.
    pub is_busy: bool,
}

/// A session that is requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Applicant {
    pub principal: Principal,
    pub memory_bytes: u64,
}

/// The decision.
#[derive(Debug)]
pub(crate) enum Admission {
    Admit,
    /// The session may start once these have ended.
    Evict(Vec<SessionId>),
    Refuse(Failure),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    SessionsPerPrincipal(usize),
    Sessions(usize),
    Memory(u64),
}

/// The usage of the limits, with the applicant included.
#[derive(Clone, Copy)]
struct UsedLimits {
    sessions: usize,
    own_sessions: usize,
    memory_bytes: u64,
}

impl UsedLimits {
    fn without(self, session: &LiveSession, applicant: &Applicant) -> Self {
        Self {
            sessions: self.sessions - 1,
            own_sessions: self.own_sessions - usize::from(session.principal == applicant.principal),
            memory_bytes: self.memory_bytes.saturating_sub(session.memory_bytes),
        }
    }

    /// Returns a limit that is exceeded; the principal's own limit first, because only its own sessions are evicted for
    /// that one.
    fn exceeded_rule(self, limits: &ServiceLimits) -> Option<Rule> {
        let own = limits.sessions_per_principal.filter(|limit| self.own_sessions > *limit);
        let memory = limits.memory_bytes.filter(|limit| self.memory_bytes > *limit);
        own.map(Rule::SessionsPerPrincipal)
            .or((self.sessions > limits.sessions).then_some(Rule::Sessions(limits.sessions)))
            .or(memory.map(Rule::Memory))
    }
}

/// Decides whether a session may start beside those that live.
pub(crate) fn admit(limits: &ServiceLimits, sessions: &[LiveSession], applicant: &Applicant) -> Admission {
    let own = sessions.iter().filter(|session| session.principal == applicant.principal);
    let memory = sessions.iter().fold(applicant.memory_bytes, |sum, session| sum.saturating_add(session.memory_bytes));
    let mut used = UsedLimits { sessions: sessions.len() + 1, own_sessions: own.count() + 1, memory_bytes: memory };
    let mut idle: Vec<&LiveSession> = sessions.iter().filter(|session| !session.is_busy && limits.evict_idle).collect();
    idle.sort_by_key(|session| (session.last_used_ms, session.created, &session.id));
    let mut evicted: Vec<&LiveSession> = Vec::new();
    while let Some(rule) = used.exceeded_rule(limits) {
        let own_only = matches!(rule, Rule::SessionsPerPrincipal(_));
        let next = idle.iter().position(|session| !own_only || session.principal == applicant.principal);
        let can_never_fit = matches!(rule, Rule::Memory(limit) if applicant.memory_bytes > limit);
        match next {
            Some(position) if !can_never_fit => {
                let session = idle.remove(position);
                used = used.without(session, applicant);
                evicted.push(session);
            }
            _ => return Admission::Refuse(refusal(rule, sessions, applicant, limits)),
        }
    }
    // The eviction of a large session may have made that of a smaller one before it unnecessary.
    for index in (0..evicted.len()).rev() {
        let without_eviction = UsedLimits {
            sessions: used.sessions + 1,
            own_sessions: used.own_sessions + usize::from(evicted[index].principal == applicant.principal),
            memory_bytes: used.memory_bytes.saturating_add(evicted[index].memory_bytes),
        };
        if without_eviction.exceeded_rule(limits).is_none() {
            used = without_eviction;
            evicted.remove(index);
        }
    }
    match evicted.as_slice() {
        [] => Admission::Admit,
        evicted => Admission::Evict(evicted.iter().map(|session| session.id.clone()).collect()),
    }
}

fn refusal(rule: Rule, sessions: &[LiveSession], applicant: &Applicant, limits: &ServiceLimits) -> Failure {
    let suffix = if limits.evict_idle { ", and none of them is idle" } else { "" };
    let (message, key) = match rule {
        Rule::Sessions(limit) => (format!("all {limit} sessions are in use{suffix}"), "sessions.max_sessions"),
        Rule::SessionsPerPrincipal(limit) => {
            (format!("all your {limit} sessions are in use{suffix}"), "sessions.max_sessions_per_principal")
        }
        Rule::Memory(limit) if applicant.memory_bytes > limit => (
            format!(
                "a session with {} of memory exceeds the limit of {} for all sessions together",
                bytes::format(applicant.memory_bytes),
                bytes::format(limit)
            ),
            "sessions.max_total_memory",
        ),
        Rule::Memory(limit) => {
            let used = sessions.iter().fold(0_u64, |sum, session| sum.saturating_add(session.memory_bytes));
            let available = bytes::format(limit.saturating_sub(used));
            let requested = bytes::format(applicant.memory_bytes);
            let limit = bytes::format(limit);
            (
                format!("{available} of {limit} of memory are available, and the session needs {requested}{suffix}"),
                "sessions.max_total_memory",
            )
        }
    };
    let failure = Failure::new(Kind::ResourceLimit, message).with("rule", key);
    let failure = match rule {
        Rule::Memory(_) => failure.hint("use a smaller flavor"),
        _ => failure,
    };
    failure
        .hint("stop a session that is no longer needed with stop_session")
        .hint(format!("or ask an administrator to raise {key}"))
}

/// Returns when a session expires if it is not used again, in seconds since the epoch: by its idle timeout or its age.
pub(crate) fn expires(created: u64, last_used: u64, idle_timeout: Duration, max_age: Option<Duration>) -> u64 {
    let idle = last_used.saturating_add(idle_timeout.as_secs());
    max_age.map_or(idle, |age| idle.min(created.saturating_add(age.as_secs())))
}

#[cfg(test)]
mod tests;
