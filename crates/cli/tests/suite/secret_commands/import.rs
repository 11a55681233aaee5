//! `ringfence server import --secrets`.

use ringfence_testkit::{User, for_each_user};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{files_with, list, run_with, succeed, text, write};

/// Literal tokens, which must be in no output and, after the import, only in the store of secrets.
const MOVED: [&str; 4] = [
    "ghp_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "ghp_bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
    "BSAcccccccccccccccccccccccc",
    "AIzadddddddddddddddddddddddddddddddddd",
];
/// A token of an unknown service.
const REMAINING: &str = "acme-eeeeeeeeeeeeeeeeeeeeeeee";

/// Writes the settings of three clients; returns their paths.
fn write_clients(home: &TempDir) -> [&'static str; 3] {
    let paths = [".cursor/mcp.json", ".codex/config.toml", ".gemini/settings.json"];
    let [work, personal, brave, maps] = MOVED;
    let cursor = json!({"mcpServers": {
        "github": {"command": "x", "env": {"GITHUB_PERSONAL_ACCESS_TOKEN": work, "LOG_LEVEL": "debug"}},
        "personal": {"command": "x", "env": {"GITHUB_PERSONAL_ACCESS_TOKEN": personal}},
        "same": {"command": "x", "env": {"GITHUB_PERSONAL_ACCESS_TOKEN": work}},
        "reference": {"command": "x", "env": {"GITHUB_PERSONAL_ACCESS_TOKEN": "${env:GITHUB_TOKEN}"}},
        "example": {"command": "x", "env": {"NOTION_TOKEN": "<your token>"}},
    }});
    let codex = format!(
        "[mcp_servers.search]\ncommand = \"x\"\nenv = {{ BRAVE_API_KEY = \"{brave}\", ACME_API_KEY = \"{REMAINING}\" }}\n"
    );
    let gemini = json!({"mcpServers": {"maps": {"command": "x", "env": {"GOOGLE_MAPS_API_KEY": maps}}}});
    for (path, text) in paths.iter().zip([cursor.to_string(), codex, gemini.to_string()]) {
        write(home, path, &text);
    }
    paths
}

fn entry(user: User, home: &TempDir, name: &str) -> Value {
    let shown = succeed(user, home, &["server", "show", name, "--json", "--reveal"]);
    let shown: Value = serde_json::from_str(&shown).expect("valid JSON");
    shown["entry"].clone()
}

fn assert_has_no_token(shown: &str) {
    assert!(MOVED.iter().chain(&[REMAINING]).all(|token| !shown.contains(token)), "{shown}");
}

#[test]
fn tokens_of_well_known_servers_become_secrets() {
    for_each_user("secret_commands::import::tokens_of_well_known_servers_become_secrets", |user| {
        let home = user.directory();
        let paths = write_clients(&home);
        let before = paths.map(|path| std::fs::read(home.path().join(path)).expect("read the file"));
        let import = |options: &[&str]| {
            let output = run_with(user, &home, &[&["server", "import", "--secrets"], options].concat(), None);
            assert!(output.status.success(), "{user:?}: {output:?}");
            assert_has_no_token(&text(&output));
            output
        };
        let planned = text(&import(&["--dry-run"]));
        let note = "note: github: GITHUB_PERSONAL_ACCESS_TOKEN would become the secret `github`, for api.github.com";
        assert!(planned.contains(note), "{user:?}: {planned}");
        assert!(list(user, &home).is_empty(), "{user:?}: a dry run stores nothing");

        let imported = import(&["--json"]);
        let document: Value = serde_json::from_slice(&imported.stdout).expect("valid JSON");
        let secrets = |name: &str| {
            let servers = document["imported"].as_array().expect("a list");
            let server = servers.iter().find(|server| server["name"] == name).expect("the server is imported");
            server["secrets"].clone()
        };
        let github = json!([
            {"name": "github", "variable": "GITHUB_PERSONAL_ACCESS_TOKEN", "hosts": ["api.github.com"]}
        ]);
        assert_eq!((secrets("github"), secrets("same")), (github.clone(), github), "{user:?}");
        assert_eq!(secrets("personal")[0]["name"], "github-personal", "{user:?}");
        assert_eq!((secrets("reference"), secrets("example")), (json!([]), json!([])), "{user:?}");

        let stored = entry(user, &home, "github");
        assert_eq!(stored["env"], json!({"LOG_LEVEL": "debug"}), "{user:?}");
        assert_eq!(stored["box"], json!({"secrets": ["github"], "allow": ["api.github.com"]}), "{user:?}");
        let search = entry(user, &home, "search");
        assert_eq!(search["env"], json!({"ACME_API_KEY": REMAINING}), "{user:?}");
        assert_eq!(search["box"], json!({"secrets": ["brave"], "allow": ["api.search.brave.com"]}), "{user:?}");
        let reference = entry(user, &home, "reference");
        assert_eq!(reference["env"], json!({"GITHUB_PERSONAL_ACCESS_TOKEN": "${env:GITHUB_TOKEN}"}), "{user:?}");
        let names: Vec<Value> = list(user, &home).into_iter().map(|mut secret| secret["name"].take()).collect();
        assert_eq!(names, ["brave", "github", "github-personal", "google-maps"], "{user:?}");
        let maps = list(user, &home).pop().expect("a secret");
        assert_eq!(maps["in"], json!(["header", "query"]), "{user:?}");

        for token in MOVED {
            let mut files = files_with(home.path(), token);
            files.retain(|name| !paths.iter().any(|path| path.ends_with(name.as_str())));
            assert_eq!(files, ["secrets.json"], "{user:?}: the database has no token");
        }
        let after = paths.map(|path| std::fs::read(home.path().join(path)).expect("read the file"));
        assert_eq!(before, after, "{user:?}: files of clients are not changed");
    });
}

#[test]
fn token_of_an_unknown_service_stays_with_a_hint() {
    let home = User::Root.directory();
    write_clients(&home);
    let shown = succeed(User::Root, &home, &["server", "import", "--secrets"]);
    let note = "note: search: ACME_API_KEY looks like a token and stays in the entry: its hosts are not known; to move \
                it: `ringfence secret add acme-api-key --variable ACME_API_KEY --host HOST`";
    assert!(shown.contains(note), "{shown}");
    assert_has_no_token(&shown);
}

#[test]
fn new_value_replaces_that_of_the_same_server() {
    let home = User::Root.directory();
    let write_token = |token: &str| {
        let file = json!({"mcpServers": {"hub": {"command": "x", "env": {"GITHUB_TOKEN": token}}}});
        write(&home, ".cursor/mcp.json", &file.to_string());
    };
    write_token(MOVED[0]);
    succeed(User::Root, &home, &["server", "import", "--secrets"]);
    write_token(MOVED[1]);
    let skipped = succeed(User::Root, &home, &["server", "import", "--secrets"]);
    assert!(skipped.contains("already exists"), "{skipped}");
    assert_eq!(files_with(home.path(), MOVED[0]), ["secrets.json"]);
    succeed(User::Root, &home, &["server", "import", "--secrets", "--replace"]);
    let names: Vec<Value> = list(User::Root, &home).into_iter().map(|mut secret| secret["name"].take()).collect();
    assert_eq!(names, ["github"]);
    assert_eq!(files_with(home.path(), MOVED[0]), Vec::<String>::new());
    // A secret of the configuration is never replaced.
    let table = "[secrets.github]\nenv = \"X\"\nhosts = [\"a.test\"]\n";
    write(&home, "ringfence.toml", table);
    succeed(User::Root, &home, &["server", "import", "--secrets", "--replace"]);
    assert_eq!(entry(User::Root, &home, "hub")["box"]["secrets"], json!(["github-hub"]));
}
