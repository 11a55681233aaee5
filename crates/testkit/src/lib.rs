//! Support for the tests of all crates: users, processes, servers, fixtures, and the harnesses of the escape and the
//! conformance suite.
//!
//! Nothing here is part of the product. Like tests, the functions panic if something fails. A test that cannot run on
//! the host calls [`skip()`], so that it is not counted as passed.
#![allow(clippy::print_stderr)] // test output

pub mod conformance_server;
pub mod conformance_suite;
mod downloads;
pub mod escape;
mod host_snapshot;
mod paths;
pub mod process;
mod server;
mod skip;
mod users;
mod wait;

pub use downloads::{Downloads, RemoteServer, download_cache};
pub use host_snapshot::HostSnapshot;
pub use paths::{fixture_path, repository_path, ringfence_path};
pub use process::Outcome;
pub use server::Server;
pub use skip::skip;
pub use users::{User, for_each_user, run_as, run_python_as, run_with_input_as};
pub use wait::wait_until;
