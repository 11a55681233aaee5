//! Tests of the fleet with scripted servers, on paused time.

mod cleanup;
mod entry_changes;
mod failures;
pub(crate) mod fake;
mod links;
mod on_demand;
