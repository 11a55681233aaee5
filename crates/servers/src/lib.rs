//! Other people's MCP servers: what is known of each, where that comes from, and how one is started in a sandbox.

mod bare;
mod file;
mod guest_access;
mod host;
mod host_path;
mod hosted;
pub mod import;
mod install;
mod interpreters;
mod manifests;
mod needs;
mod packages;
mod phase;
mod plan;
mod programs;
mod progress;
mod registries;
mod rewrite;
mod server_sandbox;
mod shared;
mod source;
mod stage;
mod start;
mod syntax;
mod tail;
mod tool;
mod written_names;

pub use guest_access::{check_installation, guest_writable, read_write_volumes};
pub use host::{Host, HostSettings};
pub use hosted::{Hosted, ServerInput, ServerOutput, Usage};
pub use phase::{Phase, StartFailure};
pub use progress::Progress;
pub use server_sandbox::Ended;
pub use source::{EntryOrigin, Following, Listed, Listing, Problem, ServerSource, list};

#[cfg(fuzzing)]
pub use import::fuzzing;
