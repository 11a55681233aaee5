//! A home full of clients: what is found in it, and why the rest is not.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use super::*;
use ringfence_entries::entry_to_json;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/import");

/// A copy of the fixtures, laid out as on one system.
struct Machine {
    directory: tempfile::TempDir,
    places: Places,
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

impl Machine {
    fn bare(os: Os) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().canonicalize().unwrap().join(name);
        let (home, cwd) = (at("home"), at("project"));
        fs::create_dir_all(&home).unwrap();
        fs::create_dir_all(&cwd).unwrap();
        let places = Places { config_dir: home.join(".config"), home, cwd, os, env: BTreeMap::new() };
        Self { directory, places }
    }

    fn full(os: Os) -> Self {
        let mut machine = Self::bare(os);
        let (home, cwd) = (machine.places.home.clone(), machine.places.cwd.clone());
        let applications = match os {
            Os::Linux => home.join(".config"),
            Os::Macos => home.join("Library/Application Support"),
        };
        let targets =
            [("home", &home), ("config", &home.join(".config")), ("applications", &applications), ("project", &cwd)];
        for (part, target) in targets {
            copy(&Path::new(FIXTURES).join(part), target);
        }
        machine.places.env.insert("MCP_SERVERS_CONFIG".into(), "servers-of-variable.json".into());
        machine
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// All that a scan tells, with no trace of this machine.
    fn told(&self) -> String {
        let import = scan(&self.places, Scope::UserAndProject, None, &GuestWritable::default());
        let mut text = String::new();
        for file in &import.files {
            writeln!(text, "{}: {} ({})", file.client.id, file.path.display(), file.servers).unwrap();
            for found in import.found.iter().filter(|found| found.path == file.path) {
                writeln!(text, "  {} = {}", found.entry.name, entry_to_json(&found.entry)).unwrap();
                found.notes.iter().for_each(|note| writeln!(text, "    note: {note}").unwrap());
            }
            for skipped in import.skipped.iter().filter(|skipped| skipped.path == file.path) {
                let name = skipped.name.as_deref().unwrap_or("(all)");
                writeln!(text, "  {name} skipped: {}", skipped.reason.why).unwrap();
                skipped.reason.hint.iter().for_each(|hint| writeln!(text, "    hint: {hint}").unwrap());
            }
        }
        let accounted = import.found.len() + import.skipped.iter().filter(|skipped| skipped.name.is_some()).count();
        assert_eq!(accounted, import.files.iter().map(|file| file.servers).sum::<usize>(), "nothing is lost silently");
        text.replace(&*self.directory.path().canonicalize().unwrap().to_string_lossy(), "")
    }
}

#[test]
fn every_client_is_understood() {
    let machine = Machine::full(Os::Linux);
    insta::assert_snapshot!(machine.told());
    let read: BTreeSet<&str> = scan(&machine.places, Scope::UserAndProject, None, &GuestWritable::default())
        .files
        .iter()
        .map(|file| file.client.id)
        .collect();
    assert_eq!(read, CLIENTS.iter().map(|client| client.id).collect(), "there is a fixture for each");
}

#[test]
fn the_same_is_found_on_a_mac() {
    let entries = |os| {
        let machine = Machine::full(os);
        let found = scan(&machine.places, Scope::UserAndProject, None, &GuestWritable::default()).found.into_iter();
        found.map(|found| (found.entry.name, found.client.id)).collect::<Vec<_>>()
    };
    assert_eq!(entries(Os::Macos), entries(Os::Linux));
}

#[test]
fn one_client_can_be_asked_alone() {
    let machine = Machine::full(Os::Linux);
    let import = scan(&machine.places, Scope::UserAndProject, client("codex"), &GuestWritable::default());
    assert!(import.found.iter().all(|found| found.client.id == "codex") && !import.found.is_empty());
    assert!(client("nobody").is_none());
}

#[test]
fn a_project_is_only_looked_at_if_asked_for() {
    let machine = Machine::full(Os::Linux);
    let import = scan(&machine.places, Scope::User, None, &GuestWritable::default());
    let of_project = |path: &Path| path.starts_with(&machine.places.cwd);
    // The variable names a file there, and is this user's own.
    let found: Vec<&str> =
        import.found.iter().filter(|found| of_project(&found.path)).map(|found| found.client.id).collect();
    assert_eq!(found, ["variable"]);
    assert!(
        watched_files(&machine.places, Scope::User).len() < watched_files(&machine.places, Scope::UserAndProject).len()
    );
}

#[test]
fn an_empty_home_has_nothing_and_that_is_no_failure() {
    let machine = Machine::bare(Os::Linux);
    assert_eq!(machine.told(), "");
}

#[test]
fn ringfence_itself_is_imported_only_if_that_is_said() {
    let mut machine = Machine::bare(Os::Linux);
    machine.write(
        "home/.cursor/mcp.json",
        r#"{"mcpServers": {
            "Ringfence": {"url": "http://127.0.0.1:8000/mcp"},
            "a": {"command": "/opt/ringfence/bin/RINGFENCE"},
            "b": {"command": ["env", "A=b", "ringfence"]},
            "c": {"command": "x", "args": ["--", "/usr/bin/ringfence"]},
            "fenced": {"command": "x", "args": ["ringfenced", "/srv/ringfence/x"]}
        }}"#,
    );
    let names = |places: &Places| -> Vec<String> {
        scan(places, Scope::UserAndProject, None, &GuestWritable::default())
            .found
            .into_iter()
            .map(|found| found.entry.name)
            .collect()
    };
    assert_eq!(names(&machine.places), ["fenced"]);
    for (variable, value) in [("RINGFENCE_ALLOW_SELF_SERVER", "1"), ("MCP_BRIDGE_ALLOW_SELF_SERVER", "True")] {
        machine.places.env.insert(variable.into(), "0".into());
        assert_eq!(names(&machine.places), ["fenced"]);
        machine.places.env.insert(variable.into(), value.into());
        assert_eq!(names(&machine.places), ["Ringfence", "a", "b", "c", "fenced"]);
        machine.places.env.clear();
    }
}

#[test]
fn variables_move_the_places() {
    let mut machine = Machine::bare(Os::Linux);
    let entry = |name: &str| format!(r#"{{"mcpServers": {{"{name}": {{"command": "x"}}}}}}"#);
    machine.write("elsewhere/.claude.json", &entry("claude"));
    machine.write("elsewhere/config.toml", "[mcp_servers.codex]\ncommand = \"x\"\n");
    machine.write("elsewhere/mcp-config.json", &entry("copilot"));
    machine.write("home/.claude.json", &entry("not-this"));
    let elsewhere = machine.directory.path().join("elsewhere").to_string_lossy().into_owned();
    for variable in ["CLAUDE_CONFIG_DIR", "CODEX_HOME", "COPILOT_HOME"] {
        machine.places.env.insert(variable.into(), elsewhere.clone());
    }
    machine.places.env.insert("MCP_SERVERS_CONFIG".into(), format!("{elsewhere}/none.json"));
    let import = scan(&machine.places, Scope::UserAndProject, None, &GuestWritable::default());
    let names: Vec<&str> = import.found.iter().map(|found| found.entry.name.as_str()).collect();
    assert_eq!(names, ["claude", "codex", "copilot"]);
    assert_eq!(import.skipped[0].reason.why, "there is no such file", "one that was named is missed");
}

#[test]
fn a_project_does_not_decide_what_else_is_read() {
    let machine = Machine::bare(Os::Linux);
    machine.write("secret.json", r#"{"mcpServers": {"secret": {"command": "x"}}}"#);
    machine.write("outside/mcp.json", r#"{"mcpServers": {"outside": {"command": "x"}}}"#);
    let at = |path: &str| machine.directory.path().join(path);
    std::os::unix::fs::symlink(at("secret.json"), at("project/.mcp.json")).unwrap();
    std::os::unix::fs::symlink(at("outside"), at("project/.cursor")).unwrap();
    std::os::unix::fs::symlink(at("secret.json"), at("home/.lmstudio")).unwrap();
    fs::create_dir(at("home/.cursor")).unwrap();
    std::os::unix::fs::symlink(at("secret.json"), at("home/.cursor/mcp.json")).unwrap();
    insta::assert_snapshot!(machine.told());
}

#[test]
fn what_cannot_be_read_is_a_reason() {
    let machine = Machine::bare(Os::Linux);
    machine.write("home/.cursor/mcp.json", "not JSON");
    machine.write("home/.kiro/settings/mcp.json", r#"{"mcpServers": []}"#);
    machine.write("home/.gemini/settings.json", "");
    machine.write("home/.codex/config.toml", "[mcp_servers\n");
    machine.write("home/.config/goose/config.yaml", "extensions: [a, b]\n");
    machine.write("home/.continue/config.yaml", "a: b: c\n");
    machine.write("home/.lmstudio/mcp.json/directory", "");
    let many: Vec<String> = (0..=MOST_SERVERS).map(|number| format!(r#""s{number}": {{"command": "x"}}"#)).collect();
    machine.write("home/MCPs/many.json", &format!("{{{}}}", many.join(",")));
    let import = scan(&machine.places, Scope::UserAndProject, None, &GuestWritable::default());
    assert!(import.found.is_empty());
    let told: Vec<String> =
        import.skipped.iter().map(|skipped| format!("{}: {}", skipped.client.id, skipped.reason.why)).collect();
    insta::assert_snapshot!(told.join("\n"));
}
