//! Scans of a home directory with the files of all clients.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use super::*;
use ringfence_entries::entry_to_json;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/import");

/// A copy of the fixtures, in the directories of one operating system.
struct Machine {
    directory: tempfile::TempDir,
    directories: UserDirectories,
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
    fn empty(os: Os) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().canonicalize().unwrap().join(name);
        let (home, cwd) = (at("home"), at("project"));
        fs::create_dir_all(&home).unwrap();
        fs::create_dir_all(&cwd).unwrap();
        let directories = UserDirectories { config_dir: home.join(".config"), home, cwd, os, env: BTreeMap::new() };
        Self { directory, directories }
    }

    fn with_fixtures(os: Os) -> Self {
        let mut machine = Self::empty(os);
        let (home, cwd) = (machine.directories.home.clone(), machine.directories.cwd.clone());
        let applications = match os {
            Os::Linux => home.join(".config"),
            Os::Macos => home.join("Library/Application Support"),
        };
        let targets =
            [("home", &home), ("config", &home.join(".config")), ("applications", &applications), ("project", &cwd)];
        for (part, target) in targets {
            copy(&Path::new(FIXTURES).join(part), target);
        }
        machine.directories.env.insert("MCP_SERVERS_CONFIG".into(), "servers-of-variable.json".into());
        machine
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Describes the result of a scan, without the path of the temporary directory.
    fn scan_report(&self) -> String {
        let result = scan(&self.directories, Scope::UserAndProject, None, &GuestWritable::default());
        let mut text = String::new();
        for file in &result.files {
            writeln!(text, "{}: {} ({})", file.client.id, file.path.display(), file.servers).unwrap();
            for found in result.found.iter().filter(|found| found.path == file.path) {
                writeln!(text, "  {} = {}", found.entry.name, entry_to_json(&found.entry)).unwrap();
                found.notes.iter().for_each(|note| writeln!(text, "    note: {note}").unwrap());
            }
            for skipped in result.skipped.iter().filter(|skipped| skipped.path == file.path) {
                let name = skipped.name.as_deref().unwrap_or("(all)");
                writeln!(text, "  {name} skipped: {}", skipped.reason.message).unwrap();
                skipped.reason.hint.iter().for_each(|hint| writeln!(text, "    hint: {hint}").unwrap());
            }
        }
        let accounted = result.found.len() + result.skipped.iter().filter(|skipped| skipped.name.is_some()).count();
        assert_eq!(
            accounted,
            result.files.iter().map(|file| file.servers).sum::<usize>(),
            "every server is found or skipped"
        );
        text.replace(&*self.directory.path().canonicalize().unwrap().to_string_lossy(), "")
    }
}

#[test]
fn imports_from_all_clients() {
    let machine = Machine::with_fixtures(Os::Linux);
    insta::assert_snapshot!(machine.scan_report());
    let read: BTreeSet<&str> = scan(&machine.directories, Scope::UserAndProject, None, &GuestWritable::default())
        .files
        .iter()
        .map(|file| file.client.id)
        .collect();
    assert_eq!(read, CLIENTS.iter().map(|client| client.id).collect(), "each client has a fixture");
}

#[test]
fn finds_the_same_servers_on_macos() {
    let entries = |os| {
        let machine = Machine::with_fixtures(os);
        let found =
            scan(&machine.directories, Scope::UserAndProject, None, &GuestWritable::default()).found.into_iter();
        found.map(|found| (found.entry.name, found.client.id)).collect::<Vec<_>>()
    };
    assert_eq!(entries(Os::Macos), entries(Os::Linux));
}

#[test]
fn scan_can_be_limited_to_one_client() {
    let machine = Machine::with_fixtures(Os::Linux);
    let result = scan(&machine.directories, Scope::UserAndProject, find_client("codex"), &GuestWritable::default());
    assert!(result.found.iter().all(|found| found.client.id == "codex") && !result.found.is_empty());
    assert!(find_client("unknown").is_none());
}

#[test]
fn project_files_are_read_only_in_project_scope() {
    let machine = Machine::with_fixtures(Os::Linux);
    let result = scan(&machine.directories, Scope::User, None, &GuestWritable::default());
    let is_in_project = |path: &Path| path.starts_with(&machine.directories.cwd);
    // The variable of this user names a file in the project.
    let found: Vec<&str> =
        result.found.iter().filter(|found| is_in_project(&found.path)).map(|found| found.client.id).collect();
    assert_eq!(found, ["variable"]);
    assert!(
        watched_files(&machine.directories, Scope::User).len()
            < watched_files(&machine.directories, Scope::UserAndProject).len()
    );
}

#[test]
fn empty_home_has_no_servers() {
    let machine = Machine::empty(Os::Linux);
    assert_eq!(machine.scan_report(), "");
}

#[test]
fn ringfence_itself_is_imported_only_if_variable_allows_it() {
    let mut machine = Machine::empty(Os::Linux);
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
    let names = |directories: &UserDirectories| -> Vec<String> {
        scan(directories, Scope::UserAndProject, None, &GuestWritable::default())
            .found
            .into_iter()
            .map(|found| found.entry.name)
            .collect()
    };
    assert_eq!(names(&machine.directories), ["fenced"]);
    for (variable, value) in [("RINGFENCE_ALLOW_SELF_SERVER", "1"), ("MCP_BRIDGE_ALLOW_SELF_SERVER", "True")] {
        machine.directories.env.insert(variable.into(), "0".into());
        assert_eq!(names(&machine.directories), ["fenced"]);
        machine.directories.env.insert(variable.into(), value.into());
        assert_eq!(names(&machine.directories), ["Ringfence", "a", "b", "c", "fenced"]);
        machine.directories.env.clear();
    }
}

#[test]
fn variables_change_locations_of_files() {
    let mut machine = Machine::empty(Os::Linux);
    let entry = |name: &str| format!(r#"{{"mcpServers": {{"{name}": {{"command": "x"}}}}}}"#);
    machine.write("elsewhere/.claude.json", &entry("claude"));
    machine.write("elsewhere/config.toml", "[mcp_servers.codex]\ncommand = \"x\"\n");
    machine.write("elsewhere/mcp-config.json", &entry("copilot"));
    machine.write("home/.claude.json", &entry("not-this"));
    let elsewhere = machine.directory.path().join("elsewhere").to_string_lossy().into_owned();
    for variable in ["CLAUDE_CONFIG_DIR", "CODEX_HOME", "COPILOT_HOME"] {
        machine.directories.env.insert(variable.into(), elsewhere.clone());
    }
    machine.directories.env.insert("MCP_SERVERS_CONFIG".into(), format!("{elsewhere}/none.json"));
    let result = scan(&machine.directories, Scope::UserAndProject, None, &GuestWritable::default());
    let names: Vec<&str> = result.found.iter().map(|found| found.entry.name.as_str()).collect();
    assert_eq!(names, ["claude", "codex", "copilot"]);
    assert_eq!(result.skipped[0].reason.message, "no such file", "a file in a variable must exist");
}

#[test]
fn file_of_variable_may_be_toml() {
    let mut machine = Machine::empty(Os::Linux);
    machine.write("more/a.toml", "description = \"All\"\n[mcpServers.a]\ncommand = \"x\"\n");
    let file = machine.directory.path().join("more/a.toml").to_string_lossy().into_owned();
    machine.directories.env.insert("MCP_SERVERS_CONFIG".into(), file);
    let result = scan(&machine.directories, Scope::User, find_client("variable"), &GuestWritable::default());
    let found: Vec<(&str, Option<&str>)> =
        result.found.iter().map(|found| (found.entry.name.as_str(), found.entry.description.as_deref())).collect();
    assert_eq!(found, [("a", Some("All"))]);
}

#[test]
fn discovered_files_are_those_of_one_directory() {
    let machine = Machine::with_fixtures(Os::Linux);
    let result = scan(&machine.directories, Scope::Discovered, None, &GuestWritable::default());
    let directory = machine.directories.home.join("MCPs");
    assert!(!result.found.is_empty() && result.files.iter().all(|file| file.path.parent() == Some(&directory)));
    let watched = watched_files(&machine.directories, Scope::Discovered);
    assert_eq!(watched.len(), fs::read_dir(directory).unwrap().count());
}

#[test]
fn links_of_project_are_not_followed() {
    let machine = Machine::empty(Os::Linux);
    machine.write("secret.json", r#"{"mcpServers": {"secret": {"command": "x"}}}"#);
    machine.write("outside/mcp.json", r#"{"mcpServers": {"outside": {"command": "x"}}}"#);
    let at = |path: &str| machine.directory.path().join(path);
    std::os::unix::fs::symlink(at("secret.json"), at("project/.mcp.json")).unwrap();
    std::os::unix::fs::symlink(at("outside"), at("project/.cursor")).unwrap();
    std::os::unix::fs::symlink(at("secret.json"), at("home/.lmstudio")).unwrap();
    fs::create_dir(at("home/.cursor")).unwrap();
    std::os::unix::fs::symlink(at("secret.json"), at("home/.cursor/mcp.json")).unwrap();
    insta::assert_snapshot!(machine.scan_report());
}

#[test]
fn unreadable_files_are_skipped_with_reason() {
    let machine = Machine::empty(Os::Linux);
    machine.write("home/.cursor/mcp.json", "not JSON");
    machine.write("home/.kiro/settings/mcp.json", r#"{"mcpServers": []}"#);
    machine.write("home/.gemini/settings.json", "");
    machine.write("home/.codex/config.toml", "[mcp_servers\n");
    machine.write("home/.config/goose/config.yaml", "extensions: [a, b]\n");
    machine.write("home/.continue/config.yaml", "a: b: c\n");
    machine.write("home/.lmstudio/mcp.json/directory", "");
    let many: Vec<String> = (0..=MAX_SERVERS).map(|number| format!(r#""s{number}": {{"command": "x"}}"#)).collect();
    machine.write("home/MCPs/many.json", &format!("{{{}}}", many.join(",")));
    let result = scan(&machine.directories, Scope::UserAndProject, None, &GuestWritable::default());
    assert!(result.found.is_empty());
    let reasons: Vec<String> =
        result.skipped.iter().map(|skipped| format!("{}: {}", skipped.client.id, skipped.reason.message)).collect();
    insta::assert_snapshot!(reasons.join("\n"));
}
