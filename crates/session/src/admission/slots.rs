//! The slots of sessions: occupied from before a session starts until after it has ended.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

use ringfence_core::sync::Mutex;
use ringfence_core::{Failure, Principal, SessionId};

use super::{Admission, Applicant, LiveSession, ServiceLimits, admit};
use crate::state::{EndReason, SessionState, now_s};

/// All slots of the server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SessionSlots {
    limits: Arc<ServiceLimits>,
    /// One lock for the decision and its effects, so that two sessions cannot get the same slot.
    occupied: Arc<Mutex<HashMap<SessionId, Occupant>>>,
}

struct Occupant {
    principal: Principal,
    memory_bytes: u64,
    created: u64,
    state: Arc<SessionState>,
}

impl Occupant {
    fn live_session(&self, id: &SessionId) -> LiveSession {
        LiveSession {
            id: id.clone(),
            principal: self.principal.clone(),
            memory_bytes: self.memory_bytes,
            created: self.created,
            last_used_ms: self.state.last_used_ms(),
            is_busy: self.state.is_in_use(),
        }
    }
}

/// The slot of one session. Dropping it frees the slot.
pub(crate) struct Slot {
    id: SessionId,
    pub(crate) state: Arc<SessionState>,
    slots: SessionSlots,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.occupied().remove(&self.id);
    }
}

impl SessionSlots {
    pub(crate) fn new(limits: ServiceLimits) -> Self {
        Self { limits: Arc::new(limits), occupied: Arc::default() }
    }

    /// Acquires a slot. Also returns the evicted sessions, whose end the caller must wait for; they accept no more calls.
    /// `on_evict` is called for each before it ends.
    pub(crate) fn acquire(
        &self,
        id: &SessionId,
        principal: &Principal,
        memory_bytes: u64,
        on_evict: impl Fn(&SessionId, &Principal),
    ) -> Result<(Slot, Vec<SessionId>), Failure> {
        let mut occupied = self.occupied();
        let applicant = Applicant { principal: principal.clone(), memory_bytes };
        let mut evicted = Vec::new();
        loop {
            let sessions: Vec<LiveSession> = occupied.iter().map(|(id, occupant)| occupant.live_session(id)).collect();
            let chosen = match admit(&self.limits, &sessions, &applicant) {
                Admission::Admit => break,
                Admission::Evict(chosen) => chosen,
                Admission::Refuse(failure) => return Err(failure),
            };
            // A session that got a call in the meantime is not evicted, and the decision is repeated.
            for id in chosen {
                if occupied.get(&id).is_some_and(|occupant| occupant.state.stop_if_idle(EndReason::Evicted))
                    && let Some(occupant) = occupied.remove(&id)
                {
                    on_evict(&id, &occupant.principal);
                    occupant.state.notify_stop();
                    evicted.push(id);
                }
            }
        }
        let state = SessionState::new();
        let principal = principal.clone();
        let occupant = Occupant { principal, memory_bytes, created: now_s(), state: Arc::clone(&state) };
        occupied.insert(id.clone(), occupant);
        Ok((Slot { id: id.clone(), state, slots: self.clone() }, evicted))
    }

    fn occupied(&self) -> MutexGuard<'_, HashMap<SessionId, Occupant>> {
        self.occupied.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Change;

    fn one_slot(evict_idle: bool) -> SessionSlots {
        SessionSlots::new(ServiceLimits { sessions: 1, sessions_per_principal: None, memory_bytes: None, evict_idle })
    }

    fn acquire(slots: &SessionSlots, name: &str) -> Result<(Slot, Vec<SessionId>), Failure> {
        slots.acquire(&SessionId::from_caller(name), &Principal::local(), 1, |_, _| {})
    }

    #[test]
    fn dropped_slot_is_free() {
        let slots = one_slot(false);
        let first = acquire(&slots, "first").unwrap();
        assert!(acquire(&slots, "second").is_err());
        drop(first);
        assert!(acquire(&slots, "second").is_ok());
    }

    #[test]
    fn idle_session_is_evicted_and_session_with_a_call_is_not() {
        let slots = one_slot(true);
        let (first, _) = acquire(&slots, "first").unwrap();
        assert!(acquire(&slots, "second").is_err(), "a starting session is not idle");
        first.state.change(Change::Started).unwrap();
        let guard = first.state.begin_use();
        assert!(acquire(&slots, "second").is_err());
        drop(guard);
        let (second, evicted) = acquire(&slots, "second").unwrap();
        assert_eq!(evicted, [SessionId::from_caller("first")]);
        drop(first);
        assert!(acquire(&slots, "third").is_err(), "the second session has the slot now");
        drop(second);
    }

    #[test]
    fn concurrent_requests_get_no_more_slots_than_there_are() {
        let limits = ServiceLimits { sessions: 5, sessions_per_principal: None, memory_bytes: None, evict_idle: false };
        let slots = SessionSlots::new(limits);
        let acquire = &|index: usize| acquire(&slots, &index.to_string()).ok();
        let acquired: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..32).map(|index| scope.spawn(move || acquire(index))).collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(acquired.len(), 5);
    }
}
