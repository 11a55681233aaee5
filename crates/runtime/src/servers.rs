//! Other people's MCP servers: what is known of each, where that comes from, and how one is started in a sandbox.

mod entry;
mod phase;

pub use entry::{BoxSettings, HostPathMode, Reach, RemoteSettings, ServerEntry, StdioSettings};
pub use phase::Phase;
