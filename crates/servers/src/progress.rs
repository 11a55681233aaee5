//! What a start is doing, for whoever waits for it.

use std::sync::Arc;

use super::phase::Phase;

/// Told of every step of a start.
#[derive(Clone, Default)]
pub struct Progress(Option<Arc<Tell>>);

type Tell = dyn Fn(Phase, &str) + Send + Sync;

impl Progress {
    /// `tell` gets the phase and a short text, such as `installing mcp-server-time`; it must not block.
    pub fn new(tell: impl Fn(Phase, &str) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(tell)))
    }

    pub(crate) fn say(&self, phase: Phase, step: &str) {
        if let Some(tell) = &self.0 {
            tell(phase, step);
        }
    }
}
