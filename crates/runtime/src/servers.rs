//! Other people's MCP servers: what is known of each, where that comes from, and how one is started in a sandbox.

mod bare;
mod cell;
mod entry;
mod expand;
mod host;
mod host_path;
mod hosted;
mod identity;
mod name;
mod parse;
mod phase;
mod plan;
mod profile;
mod progress;
mod rewrite;
mod shared;
mod stage;
mod start;
mod tail;
mod to_json;

pub use cell::Ended;
pub use entry::{BoxSettings, HostPathMode, Reach, RemoteSettings, ServerEntry, StdioSettings};
pub use expand::{ExpandError, expand, needed_variables};
pub use host::{Host, HostSettings, cache_directory};
pub use hosted::{Hosted, ServerInput, ServerOutput, Usage};
pub use identity::{derived_uuid, new_uuid};
pub use name::{adapt_name, check_name};
pub use parse::{EntryError, Warning, entry_from_json};
pub use phase::{Phase, StartFailure};
pub use profile::{Profile, SEPARATOR, alias};
pub use progress::Progress;
pub use to_json::{entry_to_json, entry_to_shown_json};
