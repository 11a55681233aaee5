//! Other people's MCP servers: what is known of each, where that comes from, and how one is started in a sandbox.

mod anchor;
mod entry;
mod expand;
mod file;
mod identity;
pub mod import;
mod name;
mod parse;
mod patch;
mod source;
mod syntax;
mod to_json;

pub use anchor::anchor_paths;
pub use entry::{BoxSettings, HostPathMode, Reach, RemoteSettings, ServerEntry, StdioSettings};
pub use expand::{ExpandError, expand, needed_variables};
pub use identity::{derived_uuid, new_uuid};
pub use name::{adapt_name, check_name};
pub use parse::{EntryError, Warning, entry_from_json};
pub use patch::patch_entry;
pub use source::{EntryOrigin, Listed, Listing, Problem, ServerSource, list};
pub use to_json::{entry_to_json, entry_to_shown_json, veil, veil_url};
