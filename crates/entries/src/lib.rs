//! Entries of MCP servers: their settings, parsed from JSON, validated, expanded and serialized.
//!
//! The configuration, the store, the import of client files, REST and the command line all use this parser. An entry is
//! plain data: this crate starts no server and reads no file or environment variable.

mod allow_entry;
mod code_alias;
mod entry;
mod expand;
mod merge_patch;
mod name;
mod parse;
mod profile;
mod redact;
mod relative_paths;
mod to_json;
mod uuid;

pub use allow_entry::AllowEntry;
pub use code_alias::code_aliases;
pub use entry::{HostPathMode, RemoteSettings, SandboxSettings, ServerEntry, StartPolicy, StdioSettings, Transport};
pub use expand::{ExpandError, expand, required_variables};
pub use merge_patch::apply_merge_patch;
pub use name::{TOOL_SEPARATOR, check_name, sanitize_name, tool_prefix};
pub use parse::{EntryError, Warning, check_box_key, entry_from_json};
pub use profile::{Profile, ProfileMode};
pub use redact::{entry_to_redacted_json, redact, redact_url};
pub use relative_paths::resolve_relative_paths;
pub use to_json::entry_to_json;
pub use uuid::{derived_uuid, new_uuid};
