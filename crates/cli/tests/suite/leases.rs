//! Sessions outlive a server that dies, and nothing outlives their lease.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ringfence_testkit::{Server, User, process, wait_until};
use serde_json::json;

const LANGUAGES: [(&str, &str, &str); 3] =
    [("python", "x = 'kept'", "print(x)"), ("node", "let x = 'kept'", "console.log(x)"), ("bash", "x=kept", "echo $x")];

fn own_cgroups(pid: u32) -> Vec<String> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let ours = groups.lines().filter_map(|line| line.rsplit('/').next()).filter(|name| name.starts_with("ringfence-"));
    ours.map(ToOwned::to_owned).collect()
}

fn group_exists(name: &str) -> bool {
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
    hierarchies.map(|hierarchy| hierarchy.path().join(name)).any(|path| path.exists())
}

fn variables_survive_a_killed_server(who: User) {
    let server = Server::start_as(who, &[], &[]);
    let sessions = LANGUAGES.map(|(template, set, get)| (server.create_session(template, set), get));
    let state = server.kill();
    // Twice, so that a session that was taken over can be taken over again.
    let second = Server::start_in(who, Arc::clone(&state), &[], &[]);
    for (session, get) in &sessions {
        assert_eq!(second.execute(session, get)["stdout"], "kept\n", "{get}");
    }
    let state = second.kill();
    let third = Server::start_in(who, state, &[], &[]);
    for (session, get) in &sessions {
        assert_eq!(third.execute(session, get)["stdout"], "kept\n", "{get}");
        let stopped = third.call("stop_session", &json!({"session_id": session}));
        assert!(stopped["result"]["isError"] != true, "{stopped}");
    }
}

#[test]
fn variables_survive_a_killed_server_of_root() {
    variables_survive_a_killed_server(User::Root);
}

#[test]
fn variables_survive_a_killed_server_of_a_plain_user() {
    variables_survive_a_killed_server(User::Plain);
}

#[test]
fn a_server_killed_in_the_middle_of_a_call_leaves_a_session_that_goes_on() {
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
        wait_until("the call does not start", || {
            let told = server.call("get_sessions", &json!({"session_id": session}));
            told["result"]["structuredContent"]["sessions"][0]["status"] == "busy"
        });
        let state = server.kill();
        drop(running);
        let server = Server::start_in(User::Root, state, &[], &[]);
        let answer = server.execute(&session, get);
        assert_eq!((&answer["status"], &answer["stdout"]), (&json!("ok"), &json!("kept\n")), "{template}: {answer}");
    }
}

#[test]
fn a_session_is_as_old_as_it_is_whoever_has_it() {
    let age = [("RINGFENCE_SESSIONS_MAX_AGE_S", "3")];
    let server = Server::start(&[], &age);
    let session = server.create_session("python", "x = 1");
    let state = server.kill();
    std::thread::sleep(Duration::from_secs(4));
    let server = Server::start_in(User::Root, state, &[], &age);
    let refused = server.call("execute_code", &json!({"code": "x", "session_id": session}));
    assert_eq!(refused["error"]["data"]["error_code"], "SESSION_NOT_FOUND", "{refused}");
}

#[test]
fn what_nobody_takes_over_ends_with_its_lease() {
    let server = Server::start(&[], &[("RINGFENCE_SESSIONS_LEASE_S", "1")]);
    for (template, set, _) in LANGUAGES {
        server.create_session(template, set);
    }
    let processes = process::descendants(server.process.id());
    let groups: BTreeSet<String> = processes.iter().flat_map(|pid| own_cgroups(*pid)).collect();
    assert!(processes.len() > 6 && !groups.is_empty(), "{processes:?} {groups:?}");
    let state = server.kill();
    wait_until("a process is left", || !processes.iter().any(|pid| process::is_alive(*pid)));
    wait_until("a cgroup is left", || !groups.iter().any(|group| group_exists(group)));
    let doors = std::fs::read_dir(state.path().join("launchers")).expect("it is there").count();
    assert_eq!(doors, 0, "a socket is left");
    // What is remembered of them is forgotten, and nobody can use it.
    let server = Server::start_in(User::Root, state, &[], &[]);
    let told = server.call("get_sessions", &json!({}));
    assert_eq!(told["result"]["structuredContent"]["sessions"], json!([]));
}

#[test]
fn servers_that_share_a_state_do_not_take_each_others_sessions() {
    let first = Server::start(&[], &[]);
    let session = first.create_session("python", "x = 'mine'");
    let second = Server::start_in(User::Root, Arc::clone(&first.state), &[], &[]);
    let stranger = second.call("execute_code", &json!({"code": "print(x)", "session_id": session}));
    assert_eq!(stranger["error"]["data"]["error_code"], "SESSION_NOT_FOUND");
    drop(second);
    assert_eq!(first.execute(&session, "print(x)")["stdout"], "mine\n");
}
