//! Entry point of the fuzz target `client_configs`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::clients::{CLIENTS, Location};
use super::places::{Base, Os, Places};
use super::shapes::Shape;
use super::{Found, Import, Scan};
use crate::syntax;
use crate::syntax::Syntax;
use ringfence_config::GuestWritable;
use ringfence_entries::{
    SandboxSettings, Transport, check_name, entry_from_json, entry_to_json, entry_to_redacted_json,
};

const SHAPES: [Shape; 11] = [
    Shape::Table(&["mcpServers"]),
    Shape::Table(&["mcp", "servers"]),
    Shape::Dollars,
    Shape::Loose,
    Shape::Own,
    Shape::ClaudeCode,
    Shape::OpenCode,
    Shape::Codex,
    Shape::Zed,
    Shape::Goose,
    Shape::Continue,
];

/// Reads a hostile file in every shape that clients have. The first byte selects the syntax.
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
    for shape in SHAPES {
        for base in [Base::Home, Base::Project] {
            import(&document, &Location { base, pattern: "", syntax, shape });
        }
    }
}

/// Takes every server of a document, as a scan does with a file.
fn import(document: &Value, location: &Location) {
    let places = Places {
        home: PathBuf::from("/home/user"),
        cwd: PathBuf::from("/project"),
        config_dir: PathBuf::from("/home/user/.config"),
        os: Os::Linux,
        env: BTreeMap::new(),
    };
    let writable = GuestWritable::default();
    let mut scan = Scan { places: &places, writable: &writable, seen: BTreeSet::new(), import: Import::default() };
    let Ok(items) = location.shape.items(document, "stem") else { return };
    let count = items.len();
    for item in items {
        scan.item(CLIENTS[0], location, Path::new("/home/user/file"), item);
    }
    assert_eq!(scan.import.found.len() + scan.import.skipped.len(), count, "nothing is dropped without a reason");
    let names: BTreeSet<&str> = scan.import.found.iter().map(|found| found.entry.name.as_str()).collect();
    assert_eq!(names.len(), scan.import.found.len(), "names are unique");
    for found in &scan.import.found {
        check(found, location);
    }
}

/// Asserts that an entry of a file cannot set its own permissions, and is unchanged after it is stored and loaded.
fn check(Found { entry, .. }: &Found, location: &Location) {
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
