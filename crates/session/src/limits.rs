//! Whether there is room for one more session: a decision, and nothing else.

use std::time::Duration;

use ringfence_core::bytes;

use ringfence_config::SessionSettings;
use ringfence_core::{Failure, Kind, Principal, SessionId};

/// The limits of the service. What is `None` is not limited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServiceLimits {
    pub sessions: usize,
    pub sessions_per_principal: Option<usize>,
    /// Of the memory limits of all sessions together.
    pub memory_bytes: Option<u64>,
    /// Whether idle sessions make room for new ones.
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

/// A session that takes room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tenant {
    pub id: SessionId,
    pub principal: Principal,
    pub memory_bytes: u64,
    /// Seconds since the epoch.
    pub created: u64,
    pub last_used_ms: u64,
    /// Has a call under way or waiting, or is only starting.
    pub busy: bool,
}

/// A session that asks for room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Applicant {
    pub principal: Principal,
    pub memory_bytes: u64,
}

#[derive(Debug)]
pub(crate) enum Admission {
    Admit,
    /// There is room once these have ended.
    Evict(Vec<SessionId>),
    Refuse(Failure),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    SessionsPerPrincipal(usize),
    Sessions(usize),
    Memory(u64),
}

/// What is taken, with the applicant among it.
#[derive(Clone, Copy)]
struct Taken {
    sessions: usize,
    own_sessions: usize,
    memory_bytes: u64,
}

impl Taken {
    fn without(self, tenant: &Tenant, applicant: &Applicant) -> Self {
        Self {
            sessions: self.sessions - 1,
            own_sessions: self.own_sessions - usize::from(tenant.principal == applicant.principal),
            memory_bytes: self.memory_bytes.saturating_sub(tenant.memory_bytes),
        }
    }

    /// The caller's own limit first: whoever is at that makes room among their own.
    fn broken_rule(self, limits: &ServiceLimits) -> Option<Rule> {
        let own = limits.sessions_per_principal.filter(|most| self.own_sessions > *most);
        let memory = limits.memory_bytes.filter(|most| self.memory_bytes > *most);
        own.map(Rule::SessionsPerPrincipal)
            .or((self.sessions > limits.sessions).then_some(Rule::Sessions(limits.sessions)))
            .or(memory.map(Rule::Memory))
    }
}

/// Decides whether a session may start beside those that live.
pub(crate) fn admit(limits: &ServiceLimits, tenants: &[Tenant], applicant: &Applicant) -> Admission {
    let own = tenants.iter().filter(|tenant| tenant.principal == applicant.principal);
    let memory = tenants.iter().fold(applicant.memory_bytes, |sum, tenant| sum.saturating_add(tenant.memory_bytes));
    let mut taken = Taken { sessions: tenants.len() + 1, own_sessions: own.count() + 1, memory_bytes: memory };
    let mut idle: Vec<&Tenant> = tenants.iter().filter(|tenant| !tenant.busy && limits.evict_idle).collect();
    idle.sort_by_key(|tenant| (tenant.last_used_ms, tenant.created, &tenant.id));
    let mut evicted: Vec<&Tenant> = Vec::new();
    while let Some(rule) = taken.broken_rule(limits) {
        let own_only = matches!(rule, Rule::SessionsPerPrincipal(_));
        let next = idle.iter().position(|tenant| !own_only || tenant.principal == applicant.principal);
        let hopeless = matches!(rule, Rule::Memory(most) if applicant.memory_bytes > most);
        match next {
            Some(position) if !hopeless => {
                let tenant = idle.remove(position);
                taken = taken.without(tenant, applicant);
                evicted.push(tenant);
            }
            _ => return Admission::Refuse(refusal(rule, tenants, applicant, limits)),
        }
    }
    // A large one that came late may have made a small one's end needless: the more recently used stays.
    for index in (0..evicted.len()).rev() {
        let kept = Taken {
            sessions: taken.sessions + 1,
            own_sessions: taken.own_sessions + usize::from(evicted[index].principal == applicant.principal),
            memory_bytes: taken.memory_bytes.saturating_add(evicted[index].memory_bytes),
        };
        if kept.broken_rule(limits).is_none() {
            taken = kept;
            evicted.remove(index);
        }
    }
    match evicted.as_slice() {
        [] => Admission::Admit,
        evicted => Admission::Evict(evicted.iter().map(|tenant| tenant.id.clone()).collect()),
    }
}

fn refusal(rule: Rule, tenants: &[Tenant], applicant: &Applicant, limits: &ServiceLimits) -> Failure {
    let busy = if limits.evict_idle { ", and none of them is idle" } else { "" };
    let (message, key) = match rule {
        Rule::Sessions(most) => (format!("all {most} sessions are in use{busy}"), "sessions.max_sessions"),
        Rule::SessionsPerPrincipal(most) => {
            (format!("all your {most} sessions are in use{busy}"), "sessions.max_sessions_per_principal")
        }
        Rule::Memory(most) if applicant.memory_bytes > most => (
            format!(
                "a session of {} is more than the {} of memory that all sessions may have",
                bytes::format(applicant.memory_bytes),
                bytes::format(most)
            ),
            "sessions.max_total_memory",
        ),
        Rule::Memory(most) => {
            let used = tenants.iter().fold(0_u64, |sum, tenant| sum.saturating_add(tenant.memory_bytes));
            let left = bytes::format(most.saturating_sub(used));
            let wanted = bytes::format(applicant.memory_bytes);
            (
                format!("{left} of {} of memory are left, and the session needs {wanted}{busy}", bytes::format(most)),
                "sessions.max_total_memory",
            )
        }
    };
    let failure = Failure::new(Kind::ResourceLimit, message).with("rule", key);
    let failure = match rule {
        Rule::Memory(_) => failure.hint("ask for a smaller flavor"),
        _ => failure,
    };
    failure
        .hint("stop a session that is no longer needed with stop_session")
        .hint(format!("or let an administrator raise {key}"))
}

/// When a session ends if nobody uses it again, in seconds since the epoch: the earlier of idleness and age.
pub(crate) fn expires(created: u64, last_used: u64, idle_timeout: Duration, most_age: Option<Duration>) -> u64 {
    let idle = last_used.saturating_add(idle_timeout.as_secs());
    most_age.map_or(idle, |most| idle.min(created.saturating_add(most.as_secs())))
}

#[cfg(test)]
mod tests;
