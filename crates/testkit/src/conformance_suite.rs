//! The official conformance suite of MCP: runs it against a server, and compares failures with a list of known ones.

mod known_failures;
mod run;

pub use known_failures::assert_only_known_failures;
pub use run::{Check, Era, LEGACY, MODERN, run};
