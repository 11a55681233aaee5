//! Other people's MCP servers: what is known of each, where that comes from, and how one is started in a sandbox.

mod bare;
mod cell;
mod entry;
mod host;
mod host_path;
mod hosted;
mod install;
mod interpreters;
mod needs;
mod packages;
mod phase;
mod plan;
mod programs;
mod progress;
mod registries;
mod rewrite;
mod shared;
mod stage;
mod start;
mod tail;
mod tool;

pub use cell::Ended;
pub use entry::{BoxSettings, HostPathMode, Reach, RemoteSettings, ServerEntry, StdioSettings};
pub use host::{Host, HostSettings, cache_directory};
pub use hosted::{Hosted, ServerInput, ServerOutput, Usage};
pub use phase::{Phase, StartFailure};
pub use progress::Progress;
