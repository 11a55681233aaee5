//! A server, and the commands of whoever looks on, with one state directory between them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use ringfence_runtime::store::Store;
use serde_json::json;

use crate::everyone::BINARY;
use crate::server::Server;

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
    let state = Server::start(&[], &[]).end();
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
