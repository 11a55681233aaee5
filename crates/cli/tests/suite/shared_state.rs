//! A server and commands that use one state directory.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use ringfence_store::Store;
use ringfence_testkit::Server;
use serde_json::json;

use crate::BINARY;

/// Runs `ringfence server` and expects success.
fn server_command(state: &Path, arguments: &[&str]) {
    let mut command = Command::new(BINARY);
    command.arg("server").args(arguments).env("RINGFENCE_STATE_DIR", state).current_dir(state);
    let output = command.output().expect("command runs");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

/// Starts a session, which the server has stored when it responds.
fn start_session(server: &Server) -> String {
    let response = server.call("execute_code", &json!({"code": "x = 1"}));
    let session = response["result"]["structuredContent"]["session_id"].as_str();
    session.unwrap_or_else(|| panic!("{response}")).to_owned()
}

#[tokio::test]
async fn commands_beside_a_killed_server_lose_nothing() {
    let mut server = Server::start(&[], &[]);
    let (mut sessions, mut servers) = (BTreeSet::new(), BTreeSet::new());
    for round in 0..3 {
        sessions.insert(start_session(&server));
        // Each command opens the database and closes it again.
        let name = format!("added-{round}");
        server_command(server.state.path(), &["add", &name, "--", "no-such-program"]);
        server_command(server.state.path(), &["list"]);
        servers.insert(name);
        sessions.insert(start_session(&server));
        let state = server.kill();
        let store = Store::open(state.path()).expect("store opens");
        let found = store.sessions().await.expect("rows are read");
        let found: BTreeSet<String> = found.into_iter().map(|session| session.id.as_str().to_owned()).collect();
        assert_eq!(found, sessions, "round {round}");
        let found = store.servers().await.expect("rows are read");
        assert_eq!(found.into_iter().map(|server| server.name).collect::<BTreeSet<_>>(), servers, "round {round}");
        store.close().await;
        server = Server::start_again(state, &[], &[]);
    }
    assert_eq!(ringfence_store::damage_reports(server.state.path()), []);
}

#[test]
fn damaged_database_is_not_replaced_while_a_server_uses_it() {
    // The first server leaves all data in the file, and none in the write-ahead log.
    let state = Server::start(&[], &[]).stop();
    let server = Server::start_again(state, &[], &[]);
    let database = server.state.path().join("ringfence.db");
    let mut content = std::fs::read(&database).expect("file exists");
    content[4096..].fill(0x5a);
    std::fs::write(&database, &content).expect("file is accessible");
    let mut list = Command::new(BINARY);
    list.args(["server", "list"]).env("RINGFENCE_STATE_DIR", server.state.path());
    let output = list.output().expect("command runs");
    assert!(!output.status.success(), "{output:?}");
    assert!(stderr(&output).contains("is damaged") && stderr(&output).contains("is in use"), "{output:?}");
    assert!(stderr(&output).contains("hint: stop all servers"), "{output:?}");
    assert_eq!(std::fs::read(&database).expect("file exists"), content);
    let state = server.kill();
    list.output().expect("command runs");
    let reports = ringfence_store::damage_reports(state.path());
    assert_eq!(std::fs::read(reports[0].damaged_file()).expect("damaged file is preserved"), content);
}

/// A state directory with one server in its database and in its backup. A second one was added after the backup, and
/// then the database was damaged.
fn damaged_state() -> tempfile::TempDir {
    let state = tempfile::tempdir().expect("directory is created");
    server_command(state.path(), &["add", "restored", "--", "no-such-program"]);
    assert!(state.path().join("ringfence.db.backup-1").exists(), "the command makes a backup");
    server_command(state.path(), &["add", "lost", "--", "no-such-program"]);
    std::fs::write(state.path().join("ringfence.db"), "this is not a database").expect("file is accessible");
    state
}

fn ringfence(state: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    command.args(arguments).env("RINGFENCE_STATE_DIR", state).current_dir(state);
    command.output().expect("command runs")
}

/// Removes the files that the hint of a report names.
fn acknowledge(state: &Path) {
    for file in std::fs::read_dir(state).expect("directory exists").flatten() {
        if file.file_name().to_string_lossy().starts_with("ringfence.db.damaged-") {
            std::fs::remove_file(file.path()).expect("file is accessible");
        }
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_command_reports_a_damaged_database_until_it_is_acknowledged() {
    let commands: [&[&str]; 7] = [
        &["server", "list"],
        &["server", "search", "x"],
        &["server", "add", "new", "--replace", "--", "no-such-program"],
        &["session", "list"],
        &["status"],
        &["config", "show"],
        &["audit", "export"],
    ];
    for first in commands.iter().filter(|arguments| arguments[0] != "config") {
        let state = damaged_state();
        for arguments in [first].into_iter().chain(&commands) {
            let output = ringfence(state.path(), arguments);
            let text = stderr(&output);
            assert!(text.contains("the state database was found damaged"), "{arguments:?}: {output:?}");
            assert!(text.contains("the backup ringfence.db.backup-1 of "), "{arguments:?}: {text}");
            let pattern = format!("remove {}/ringfence.db.damaged-", state.path().display());
            assert!(text.contains("hint: ") && text.contains(&pattern), "{arguments:?}: {text}");
            let may_be_incomplete = matches!(arguments[1..], ["list" | "search" | "export", ..]);
            assert_eq!(output.status.code(), Some(i32::from(may_be_incomplete)), "{arguments:?}: {output:?}");
        }
        let list = ringfence(state.path(), &["server", "list"]);
        assert!(String::from_utf8_lossy(&list.stdout).contains("restored"), "{list:?}");
        let show = ringfence(state.path(), &["server", "show", "lost"]);
        assert_eq!(show.status.code(), Some(125), "{show:?}");
        assert!(stderr(&show).contains("hint: its entry may have been lost"), "{show:?}");
        let doctor = ringfence(state.path(), &["doctor"]);
        assert!(String::from_utf8_lossy(&doctor.stdout).contains("the state database was found damaged"), "{doctor:?}");
        acknowledge(state.path());
        for arguments in &commands {
            let output = ringfence(state.path(), arguments);
            assert!(output.status.success() && !stderr(&output).contains("damaged"), "{arguments:?}: {output:?}");
        }
    }
}

#[test]
fn server_logs_a_damaged_database_at_every_start() {
    let state = damaged_state();
    for _ in 0..2 {
        let mut serve = Command::new(BINARY);
        serve.args(["serve", "--stdio"]).env("RINGFENCE_STATE_DIR", state.path()).stdin(std::process::Stdio::null());
        let output = serve.output().expect("command runs");
        let text = stderr(&output);
        assert!(text.contains("ERROR") && text.contains("the state database was found damaged"), "{text}");
    }
}

#[test]
fn newer_database_is_refused_by_every_command_and_the_server() {
    let state = tempfile::tempdir().expect("directory is created");
    server_command(state.path(), &["add", "stored", "--", "no-such-program"]);
    let database = state.path().join("ringfence.db");
    let mut content = std::fs::read(&database).expect("file exists");
    // `PRAGMA user_version`, in the header.
    content[60..64].copy_from_slice(&99_u32.to_be_bytes());
    std::fs::write(&database, &content).expect("file is accessible");
    let commands: [&[&str]; 6] = [
        &["server", "list"],
        &["server", "add", "new", "--", "no-such-program"],
        &["session", "list"],
        &["status"],
        &["audit", "export"],
        &["serve", "--stdio"],
    ];
    for arguments in commands {
        let output = ringfence(state.path(), arguments);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {output:?}");
        let text = stderr(&output);
        assert!(text.contains("newer ringfence: its format is 99"), "{arguments:?}: {text}");
        assert!(text.contains("hint: the file is left unchanged"), "{arguments:?}: {text}");
        assert_eq!(std::fs::read(&database).expect("file exists"), content, "{arguments:?}");
    }
    assert_eq!(ringfence_store::damage_reports(state.path()), []);
}
