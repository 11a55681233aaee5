//! Hosted MCP servers: lists their entries from all sources, imports entries from other MCP clients, installs their
//! packages, and starts them in sandboxes. README.md has the map of the modules.

mod context;
mod guest_access;
mod host;
mod host_process;
mod hosted;
pub mod import;
mod install;
mod launch;
mod listing;
mod phase;
mod plan;
mod server_sandbox;
mod staging;
mod syntax;
mod template_builds;
mod template_packages;
mod text_file;

pub use context::HostSettings;
pub use guest_access::{check_installation, guest_writable, read_write_volumes};
pub use host::Host;
pub use hosted::{HostedServer, ServerInput, ServerOutput, Usage};
pub use listing::{EntryOrigin, FileTrust, ListedServer, Listing, ListingWatcher, Problem, list};
pub use phase::{Phase, Progress, StartFailure};
pub use server_sandbox::ProcessExit;

#[cfg(fuzzing)]
pub use import::fuzzing;
