//! Sessions survive the death of their server until their lease ends.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ringfence_testkit::{Server, User, process, wait_until};
use serde_json::json;

const LANGUAGES: [(&str, &str, &str); 3] = [
    ("python", "x = 'value'", "print(x)"),
    ("node", "let x = 'value'", "console.log(x)"),
    ("bash", "x=value", "echo $x"),
];

fn ringfence_cgroups(pid: u32) -> Vec<String> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let names = groups.lines().filter_map(|line| line.rsplit('/').next()).filter(|name| name.starts_with("ringfence-"));
    names.map(ToOwned::to_owned).collect()
}

fn cgroup_exists(name: &str) -> bool {
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
    hierarchies.map(|hierarchy| hierarchy.path().join(name)).any(|path| path.exists())
}

fn check_variables_survive_a_killed_server(user: User) {
    let server = Server::start_as(user, &[], &[]);
    let sessions = LANGUAGES.map(|(template, set, get)| (server.create_session(template, set), get));
    let state = server.kill();
    // A session that was adopted can be adopted again.
    let second = Server::start_in(user, Arc::clone(&state), &[], &[]);
    for (session, get) in &sessions {
        assert_eq!(second.execute(session, get)["stdout"], "value\n", "{get}");
    }
    let state = second.kill();
    let third = Server::start_in(user, state, &[], &[]);
    for (session, get) in &sessions {
        assert_eq!(third.execute(session, get)["stdout"], "value\n", "{get}");
        let stopped = third.call("stop_session", &json!({"session_id": session}));
        assert!(stopped["result"]["isError"] != true, "{stopped}");
    }
}

#[test]
fn variables_survive_a_killed_server_of_root() {
    check_variables_survive_a_killed_server(User::Root);
}

#[test]
fn variables_survive_a_killed_server_of_a_plain_user() {
    check_variables_survive_a_killed_server(User::Plain);
}

#[test]
fn session_survives_a_server_killed_during_a_call() {
    for (template, set, get) in LANGUAGES {
        let server = Server::start(&[], &[]);
        let session = server.create_session(template, set);
        let endless = match template {
            "python" => "while True: print('noise ' * 1000)",
            "node" => "while (true) console.log('noise '.repeat(1000))",
            _ => "while :; do echo noise; done",
        };
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "execute_code",
            "arguments": {"code": endless, "session_id": session, "timeout": 60}}});
        let running = server.send("POST /mcp", &call.to_string());
        wait_until("the call did not start", || {
            let info = server.call("get_sessions", &json!({"session_id": session}));
            info["result"]["structuredContent"]["sessions"][0]["status"] == "busy"
        });
        let state = server.kill();
        drop(running);
        let server = Server::start_in(User::Root, state, &[], &[]);
        let response = server.execute(&session, get);
        assert_eq!(
            (&response["status"], &response["stdout"]),
            (&json!("ok"), &json!("value\n")),
            "{template}: {response}"
        );
    }
}

#[test]
fn maximum_age_of_a_session_includes_time_without_a_server() {
    // Only the second server has the limit, so that the session cannot reach it before its server is killed.
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "x = 1");
    let state = server.kill();
    let expired = SystemTime::now() + Duration::from_secs(1);
    wait_until("the session did not reach its maximum age", || SystemTime::now() > expired);
    let server = Server::start_in(User::Root, state, &[], &[("RINGFENCE_SESSIONS_MAX_AGE_S", "1")]);
    let refused = server.call("execute_code", &json!({"code": "x", "session_id": session}));
    assert_eq!(refused["error"]["data"]["error_code"], "SESSION_NOT_FOUND", "{refused}");
}

#[test]
fn unadopted_sessions_end_with_their_lease() {
    let server = Server::start(&[], &[("RINGFENCE_SESSIONS_LEASE_S", "1")]);
    for (template, set, _) in LANGUAGES {
        server.create_session(template, set);
    }
    let processes = process::descendants(server.process.id());
    let groups: BTreeSet<String> = processes.iter().flat_map(|pid| ringfence_cgroups(*pid)).collect();
    assert!(processes.len() > 6 && !groups.is_empty(), "{processes:?} {groups:?}");
    let state = server.kill();
    wait_until("a process was left", || !processes.iter().any(|pid| process::is_alive(*pid)));
    wait_until("a cgroup was left", || !groups.iter().any(|group| cgroup_exists(group)));
    let sockets = std::fs::read_dir(state.path().join("launchers")).expect("read the directory of launchers").count();
    assert_eq!(sockets, 0, "a socket was left");
    // The next server does not list the ended sessions.
    let server = Server::start_in(User::Root, state, &[], &[]);
    let list = server.call("get_sessions", &json!({}));
    assert_eq!(list["result"]["structuredContent"]["sessions"], json!([]));
}

#[test]
fn servers_with_the_same_state_directory_do_not_adopt_live_sessions() {
    let first = Server::start(&[], &[]);
    let session = first.create_session("python", "x = 'first'");
    let second = Server::start_in(User::Root, Arc::clone(&first.state), &[], &[]);
    let refused = second.call("execute_code", &json!({"code": "print(x)", "session_id": session}));
    assert_eq!(refused["error"]["data"]["error_code"], "SESSION_NOT_FOUND");
    drop(second);
    assert_eq!(first.execute(&session, "print(x)")["stdout"], "first\n");
}
