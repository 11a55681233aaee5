//! Harness of the escape suite: runs the attack scripts of `tests/escape` in a sandbox and, as a control, without one.
//!
//! A script prints one JSON line for each attempt ([`report`]). A [`Case`] names the script, its sandbox and its
//! arguments; [`Setup`] provides what the script attacks: files, a process, sockets and servers of the host.

mod case;
mod host_servers;
pub mod leftovers;
pub mod report;
mod setup;
mod sibling;
pub mod volumes;

pub use case::{Case, End, Inherits, run_bare, run_sandboxed};
pub use setup::{Setup, TOKEN_VARIABLE};
