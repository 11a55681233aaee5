//! Tests of the fleet with scripted servers, on paused time.

mod cleanup;
mod entry_changes;
mod failures;
mod fake;
mod links;
