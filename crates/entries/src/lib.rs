//! The entries of MCP servers: what they are, how they are read from JSON and written as JSON, and what is checked.
//!
//! The configuration, the store, client files and the command line all use this one parser. An entry is data: nothing
//! here starts a server or reads a file.

mod anchor;
mod code_alias;
mod entry;
mod expand;
mod name;
mod parse;
mod patch;
mod profile;
mod to_json;
mod uuid;

pub use anchor::anchor_paths;
pub use code_alias::{server_aliases, tool_aliases};
pub use entry::{BoxSettings, HostPathMode, Reach, RemoteSettings, ServerEntry, StdioSettings};
pub use expand::{ExpandError, expand, needed_variables};
pub use name::{adapt_name, check_name};
pub use parse::{EntryError, Warning, check_box_key, check_url, entry_from_json};
pub use patch::patch_entry;
pub use profile::{Mode, Profile, SEPARATOR, alias};
pub use to_json::{entry_to_json, entry_to_shown_json, veil, veil_url};
pub use uuid::{derived_uuid, new_uuid};
