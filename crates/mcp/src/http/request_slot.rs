//! The slot of a request that is in progress.

use std::sync::Arc;

use ringfence_core::Principal;
use ringfence_core::sync::Mutex;

use crate::fair_pool::Permit;

/// A request that has passed the gate.
pub(super) struct Admitted {
    pub(super) principal: Principal,
    /// None if the request takes no slot.
    pub(super) slot: Option<RequestSlot>,
}

/// A slot among the concurrent requests. The response keeps it until it is sent and the call until it ends, whichever
/// is later: a call may outlive the connection on which it came.
#[derive(Clone)]
pub(super) struct RequestSlot(Arc<Mutex<Option<Permit>>>);

impl RequestSlot {
    pub(super) fn new(permit: Permit) -> Self {
        Self(Arc::new(Mutex::new(Some(permit))))
    }

    /// Frees the slot early, for a request that turns out to be an endless stream.
    pub(super) fn release(&self) {
        self.0.lock().take();
    }
}
