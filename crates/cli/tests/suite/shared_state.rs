//! A server, and the commands of whoever looks on, with one state directory between them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use ringfence_store::Store;
use ringfence_testkit::Server;
use serde_json::json;

use crate::BINARY;

/// Runs a command that is to succeed.
fn command(state: &Path, arguments: &[&str]) {
    let mut command = Command::new(BINARY);
    command.arg("server").args(arguments).env("RINGFENCE_STATE_DIR", state).current_dir(state);
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

/// A session of its own, which the server has noted when it answers.
fn session(server: &Server) -> String {
    let answer = server.call("execute_code", &json!({"code": "x = 1"}));
    let session = answer["result"]["structuredContent"]["session_id"].as_str();
    session.unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[tokio::test]
async fn commands_beside_a_server_cost_it_nothing_when_it_is_killed() {
    let mut server = Server::start(&[], &[]);
    let (mut sessions, mut servers) = (BTreeSet::new(), BTreeSet::new());
    for round in 0..3 {
        sessions.insert(session(&server));
        // Each opens the state and closes it again, as if it were the last.
        let name = format!("added-{round}");
        command(server.state.path(), &["add", &name, "--", "no-such-program"]);
        command(server.state.path(), &["list"]);
        servers.insert(name);
        sessions.insert(session(&server));
        let state = server.kill();
        let store = Store::open(state.path()).expect("it opens");
        let found = store.sessions().await.expect("it is read");
        let found: BTreeSet<String> = found.into_iter().map(|session| session.id.as_str().to_owned()).collect();
        assert_eq!(found, sessions, "round {round}");
        let found = store.servers().await.expect("it is read");
        assert_eq!(found.into_iter().map(|server| server.name).collect::<BTreeSet<_>>(), servers, "round {round}");
        store.close().await;
        server = Server::start_again(state, &[], &[]);
    }
    assert!(!server.state.path().join("ringfence.db.broken-1").exists());
}

#[test]
fn a_broken_state_is_not_replaced_under_a_server() {
    // The first leaves all in the file, and nothing in a log beside it.
    let state = Server::start(&[], &[]).stop();
    let server = Server::start_again(state, &[], &[]);
    let database = server.state.path().join("ringfence.db");
    let mut content = std::fs::read(&database).expect("it is there");
    content[4096..].fill(0x5a);
    std::fs::write(&database, &content).expect("it is ours");
    let mut list = Command::new(BINARY);
    list.args(["server", "list"]).env("RINGFENCE_STATE_DIR", server.state.path());
    let output = list.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{output:?}");
    assert!(said.contains("is broken") && said.contains("another server uses it"), "{said}");
    assert!(said.contains("hint: stop the other servers"), "{said}");
    assert_eq!(std::fs::read(&database).expect("it is there"), content);
    let state = server.kill();
    list.output().expect("it runs");
    assert_eq!(std::fs::read(state.path().join("ringfence.db.broken-1")).expect("a copy is kept"), content);
}

/// A state directory with a server entry, whose database then loses its content.
fn broken_state() -> tempfile::TempDir {
    let state = tempfile::tempdir().expect("a directory");
    command(state.path(), &["add", "lost", "--", "no-such-program"]);
    std::fs::write(state.path().join("ringfence.db"), "this is not a database").expect("it is ours");
    state
}

fn ringfence(state: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    command.args(arguments).env("RINGFENCE_STATE_DIR", state).current_dir(state);
    command.output().expect("it runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_command_reports_a_broken_database_until_it_is_acknowledged() {
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
        let state = broken_state();
        let kept = state.path().join("ringfence.db.broken-1");
        for arguments in [first].into_iter().chain(&commands) {
            let output = ringfence(state.path(), arguments);
            let said = stderr(&output);
            assert!(said.contains("the state database was broken"), "{arguments:?}: {output:?}");
            assert!(said.contains("servers: cannot be read"), "{arguments:?}: {said}");
            assert!(said.contains(&format!("hint: the broken file is kept as {}", kept.display())), "{said}");
            let shows_lost = matches!(arguments[1..], ["list" | "search" | "export", ..]);
            assert_eq!(output.status.code(), Some(i32::from(shows_lost)), "{arguments:?}: {output:?}");
            assert!(!String::from_utf8_lossy(&output.stdout).contains("no servers"), "{arguments:?}: {output:?}");
        }
        let show = ringfence(state.path(), &["server", "show", "lost"]);
        assert_eq!(show.status.code(), Some(125), "{show:?}");
        assert!(stderr(&show).contains("hint: it may have been lost"), "{show:?}");
        let doctor = ringfence(state.path(), &["doctor"]);
        assert!(String::from_utf8_lossy(&doctor.stdout).contains("the state database was broken"), "{doctor:?}");
        std::fs::remove_file(&kept).expect("it is kept");
        for arguments in &commands {
            let output = ringfence(state.path(), arguments);
            assert!(output.status.success() && !stderr(&output).contains("broken"), "{arguments:?}: {output:?}");
        }
    }
}

#[test]
fn server_logs_a_broken_database_at_every_start() {
    let state = broken_state();
    for _ in 0..2 {
        let mut serve = Command::new(BINARY);
        serve.args(["serve", "--stdio"]).env("RINGFENCE_STATE_DIR", state.path()).stdin(std::process::Stdio::null());
        let output = serve.output().expect("it runs");
        let said = stderr(&output);
        assert!(said.contains("the state database was broken") && said.contains("rows may be lost in"), "{said}");
    }
}

#[test]
fn newer_database_is_refused_by_every_command_and_the_server() {
    let state = tempfile::tempdir().expect("a directory");
    command(state.path(), &["add", "kept", "--", "no-such-program"]);
    let database = state.path().join("ringfence.db");
    let mut content = std::fs::read(&database).expect("it is there");
    // `PRAGMA user_version`, in the header.
    content[60..64].copy_from_slice(&99_u32.to_be_bytes());
    std::fs::write(&database, &content).expect("it is ours");
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
        let said = stderr(&output);
        assert!(said.contains("newer ringfence: its format is 99"), "{arguments:?}: {said}");
        assert!(said.contains("hint: the file is left unchanged"), "{arguments:?}: {said}");
        assert_eq!(std::fs::read(&database).expect("it is there"), content, "{arguments:?}");
    }
    let kept = std::fs::read_dir(state.path()).expect("it is there").flatten();
    let kept: Vec<_> =
        kept.map(|file| file.file_name()).filter(|name| name.to_string_lossy().contains("broken")).collect();
    assert!(kept.is_empty(), "{kept:?}");
}
