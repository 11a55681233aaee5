//! For tests only: the program as different users, and the state of the host around it.
#![allow(clippy::print_stderr)] // tests talk to whoever runs them

mod files;
pub mod fixture;
mod host;
mod skip;
mod who;

pub use files::fixture_file;
pub use host::Snapshot;
pub use skip::skip;
pub use who::{Outcome, Who};
