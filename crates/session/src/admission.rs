//! The places that sessions take, from before they start until after they end.

use ringfence_core::sync::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

use super::limits::{Admission, Applicant, ServiceLimits, Tenant, admit};
use super::state::EndReason;
use crate::session_state::{SessionState, now};
use ringfence_core::{Failure, Principal, SessionId};

#[derive(Clone)]
pub(crate) struct Places {
    limits: Arc<ServiceLimits>,
    /// One lock for the decision and what follows from it, so that two sessions cannot take the same place.
    taken: Arc<Mutex<HashMap<SessionId, Holder>>>,
}

struct Holder {
    principal: Principal,
    memory_bytes: u64,
    created: u64,
    shared: Arc<SessionState>,
}

impl Holder {
    fn tenant(&self, id: &SessionId) -> Tenant {
        Tenant {
            id: id.clone(),
            principal: self.principal.clone(),
            memory_bytes: self.memory_bytes,
            created: self.created,
            last_used_ms: self.shared.last_used_ms(),
            busy: self.shared.is_in_use(),
        }
    }
}

/// A place that is taken until this is dropped.
pub(crate) struct Place {
    id: SessionId,
    pub(crate) shared: Arc<SessionState>,
    places: Places,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken().remove(&self.id);
    }
}

impl Places {
    pub(crate) fn new(limits: ServiceLimits) -> Self {
        Self { limits: Arc::new(limits), taken: Arc::default() }
    }

    /// Takes a place for a session, and names those that must end before it is free. They take no more calls, and
    /// `note` hears of each before it ends.
    pub(crate) fn take(
        &self,
        id: &SessionId,
        principal: &Principal,
        memory_bytes: u64,
        note: impl Fn(&SessionId, &Principal),
    ) -> Result<(Place, Vec<SessionId>), Failure> {
        let mut taken = self.taken();
        let applicant = Applicant { principal: principal.clone(), memory_bytes };
        let mut evicted = Vec::new();
        loop {
            let tenants: Vec<Tenant> = taken.iter().map(|(id, holder)| holder.tenant(id)).collect();
            let chosen = match admit(&self.limits, &tenants, &applicant) {
                Admission::Admit => break,
                Admission::Evict(chosen) => chosen,
                Admission::Refuse(failure) => return Err(failure),
            };
            // One that has got a call in the meantime stays, and the choice is made anew without it.
            for id in chosen {
                if taken.get(&id).is_some_and(|holder| holder.shared.retire_if_idle(EndReason::Evicted))
                    && let Some(holder) = taken.remove(&id)
                {
                    note(&id, &holder.principal);
                    holder.shared.halt();
                    evicted.push(id);
                }
            }
        }
        let shared = SessionState::new();
        let holder = Holder { principal: principal.clone(), memory_bytes, created: now(), shared: Arc::clone(&shared) };
        taken.insert(id.clone(), holder);
        Ok((Place { id: id.clone(), shared, places: self.clone() }, evicted))
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<SessionId, Holder>> {
        self.taken.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::Change;
    use super::*;

    fn places(evict_idle: bool) -> Places {
        Places::new(ServiceLimits { sessions: 1, sessions_per_principal: None, memory_bytes: None, evict_idle })
    }

    fn take(places: &Places, name: &str) -> Result<(Place, Vec<SessionId>), Failure> {
        places.take(&SessionId::from_caller(name), &Principal::local(), 1, |_, _| {})
    }

    #[test]
    fn a_place_is_free_again_when_it_is_given_back() {
        let places = places(false);
        let first = take(&places, "first").unwrap();
        assert!(take(&places, "second").is_err());
        drop(first);
        assert!(take(&places, "second").is_ok());
    }

    #[test]
    fn an_idle_session_makes_room_and_one_with_a_call_does_not() {
        let places = places(true);
        let (first, _) = take(&places, "first").unwrap();
        assert!(take(&places, "second").is_err(), "one that starts is not idle");
        first.shared.change(Change::Started).unwrap();
        let visit = first.shared.enter();
        assert!(take(&places, "second").is_err());
        drop(visit);
        let (second, evicted) = take(&places, "second").unwrap();
        assert_eq!(evicted, [SessionId::from_caller("first")]);
        drop(first);
        assert!(take(&places, "third").is_err(), "the place is the second's now");
        drop(second);
    }

    #[test]
    fn many_at_once_do_not_take_more_places_than_there_are() {
        let limits = ServiceLimits { sessions: 5, sessions_per_principal: None, memory_bytes: None, evict_idle: false };
        let places = Places::new(limits);
        let place = &|index: usize| take(&places, &index.to_string()).ok();
        let kept: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..32).map(|index| scope.spawn(move || place(index))).collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(kept.len(), 5);
    }
}
