//! A place among the requests that are worked on at a time.

use std::sync::{Arc, Mutex, PoisonError};

use ringfence_core::Principal;

use crate::share::Permit;

/// Whoever has passed the gate.
pub(super) struct Admitted {
    pub(super) principal: Principal,
    /// None where a request takes none.
    pub(super) place: Option<Place>,
}

/// Kept by the answer until it is sent and by the call until it ends, whichever is later: a call may outlive the
/// connection on which it came.
#[derive(Clone)]
pub(super) struct Place(Arc<Mutex<Option<Permit>>>);

impl Place {
    pub(super) fn new(permit: Permit) -> Self {
        Self(Arc::new(Mutex::new(Some(permit))))
    }

    /// For a request that turns out to be one that only listens.
    pub(super) fn give_back(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
