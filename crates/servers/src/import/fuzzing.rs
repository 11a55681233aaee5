//! Entry point of the fuzz target `client_configs`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::clients::{CLIENTS, Location};
use super::formats::Format;
use super::locations::{Base, Os, UserDirectories};
use super::{FoundServer, Scan, ScanResult};
use crate::syntax;
use crate::syntax::Syntax;
use ringfence_config::GuestWritable;
use ringfence_entries::{
    SandboxSettings, Transport, check_name, entry_from_json, entry_to_json, entry_to_redacted_json,
};

const FORMATS: [Format; 11] = [
    Format::Table(&["mcpServers"]),
    Format::Table(&["mcp", "servers"]),
    Format::DollarVariables,
    Format::AnyTable,
    Format::Ringfence,
    Format::ClaudeCode,
    Format::OpenCode,
    Format::Codex,
    Format::Zed,
    Format::Goose,
    Format::Continue,
];

/// Reads a hostile file in the formats of all clients. The first byte selects the syntax.
pub fn client_configs(data: &[u8]) {
    let Some((syntax, bytes)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let syntax = match syntax % 4 {
        0 => Syntax::Json,
        1 => Syntax::Toml,
        2 => Syntax::Yaml,
        _ => return ringfence_config::fuzzing::config_file(text),
    };
    let Ok(document) = syntax::parse(text, syntax) else { return };
    for format in FORMATS {
        for base in [Base::Home, Base::Project] {
            import(&document, &Location { base, pattern: "", syntax, format });
        }
    }
}

/// Imports all servers of a document, as a scan does with a file.
fn import(document: &Value, location: &Location) {
    let directories = UserDirectories {
        home: PathBuf::from("/home/user"),
        cwd: PathBuf::from("/project"),
        config_dir: PathBuf::from("/home/user/.config"),
        os: Os::Linux,
        env: BTreeMap::new(),
    };
    let writable = GuestWritable::default();
    let mut scan =
        Scan { directories: &directories, writable: &writable, seen: BTreeSet::new(), result: ScanResult::default() };
    let Ok(items) = location.format.items(document, "stem") else { return };
    let count = items.len();
    for item in items {
        scan.add_item(CLIENTS[0], location, Path::new("/home/user/file"), item);
    }
    assert_eq!(scan.result.found.len() + scan.result.skipped.len(), count, "nothing is dropped without a reason");
    let names: BTreeSet<&str> = scan.result.found.iter().map(|found| found.entry.name.as_str()).collect();
    assert_eq!(names.len(), scan.result.found.len(), "names are unique");
    for found in &scan.result.found {
        check(found, location);
    }
}

/// Asserts that an entry of a file cannot set its own permissions, and is unchanged after it is stored and loaded.
fn check(FoundServer { entry, .. }: &FoundServer, location: &Location) {
    check_name(&entry.name).expect("a name");
    if let Transport::Stdio(settings) = &entry.transport {
        assert!(settings.sandbox, "imported without a sandbox");
        assert!(location.base != Base::Project || settings.sandbox_settings == SandboxSettings::default());
        assert!(settings.args.iter().chain([&settings.command]).all(|text| !text.contains('\0')));
    }
    let stored = entry_to_json(entry);
    let (again, _) = entry_from_json(&entry.name, &stored).expect("an entry");
    assert_eq!(again, *entry, "changed by being stored");
    entry_to_redacted_json(entry);
}
