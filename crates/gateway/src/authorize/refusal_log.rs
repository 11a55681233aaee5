//! Records refusals in the audit, a limited number of them for one piece of code.

use std::sync::atomic::{AtomicU32, Ordering};

use ringfence_core::{AuditEvent, Failure, Kind, Principal, SessionId};
use ringfence_store::Audit;

/// Maximum number of refusals of one piece of code that are recorded one by one; the others are only counted.
const MAX_PER_CODE: u32 = 16;

pub(super) struct RefusalLog {
    audit: Audit,
    limited: Option<Limited>,
}

struct Limited {
    principal: Principal,
    session: Option<SessionId>,
    count: AtomicU32,
}

impl RefusalLog {
    pub(super) fn new(audit: Audit) -> Self {
        Self { audit, limited: None }
    }

    /// A log for one piece of code, which records the number of the remaining refusals when it is dropped.
    pub(super) fn limited(&self, principal: &Principal, session: Option<&SessionId>) -> Self {
        let limited = Limited { principal: principal.clone(), session: session.cloned(), count: AtomicU32::new(0) };
        Self { audit: self.audit.clone(), limited: Some(limited) }
    }

    pub(super) fn record(&self, principal: &Principal, session: Option<&SessionId>, refusal: &Failure) {
        if let Some(limited) = &self.limited
            && limited.count.fetch_add(1, Ordering::Relaxed) >= MAX_PER_CODE
        {
            return;
        }
        self.audit.record(AuditEvent::refusal(refusal).by(principal, session));
    }
}

impl Drop for RefusalLog {
    fn drop(&mut self) {
        let Some(limited) = &self.limited else { return };
        let unrecorded = limited.count.load(Ordering::Relaxed).saturating_sub(MAX_PER_CODE);
        if unrecorded > 0 {
            let refusal = Failure::new(Kind::Policy, format!("{unrecorded} more requests of the same code"));
            self.audit.record(AuditEvent::refusal(&refusal).by(&limited.principal, limited.session.as_ref()));
        }
    }
}
