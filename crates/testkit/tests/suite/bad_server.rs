//! Each mode of `bad_server.py` misbehaves as documented; otherwise the tests that use it would prove nothing.

use std::fs;
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use ringfence_testkit::{fixture_path, process, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::stdio_client::StdioClient;

fn server(mode: &str) -> Command {
    let mut command = Command::new("/usr/bin/python3");
    command.arg(fixture_path("bad_server.py")).arg(mode).env("BAD_SERVER_SECONDS", "0.2").stderr(Stdio::null());
    command
}

#[test]
fn ordinary_tools_work_in_every_mode_that_starts() {
    for mode in [
        "well",
        "slow-start",
        "no-discover",
        "die-in-call",
        "flood-stderr",
        "send-100-mb",
        "big-result",
        "invalid-json",
        "duplicate-ids",
        "change-tools",
        "change-all",
        "ignore-sigterm",
        "endless-pages",
        "many-tools",
    ] {
        let mut client = StdioClient::connect(&mut server(mode));
        assert_eq!(client.call(2, "echo", &json!({"message": mode})), mode);
        assert!(client.call(3, "read_path", &json!({"path": "/nowhere"})).starts_with("/nowhere: No such file"));
        assert_eq!(client.call(4, "sleep", &json!({"seconds": 0.01})), "slept");
    }
}

#[test]
fn server_dies_at_start_or_on_a_request() {
    let mut at_start = StdioClient::start(&mut server("die-at-start"));
    assert_eq!((at_start.read_line(), at_start.wait().code()), (None, Some(3)));
    let mut on_discovery = StdioClient::start(&mut server("no-discover"));
    on_discovery.send(1, "server/discover", &json!({}));
    assert_eq!((on_discovery.read_line(), on_discovery.wait().code()), (None, Some(1)));
    let mut in_call = StdioClient::connect(&mut server("die-in-call"));
    in_call.send(2, "tools/call", &json!({"name": "die"}));
    assert_eq!((in_call.read_line(), in_call.wait().signal()), (None, Some(9)));
}

#[test]
fn hanging_server_reads_without_responding() {
    let mut client = StdioClient::start(&mut server("hang-at-start"));
    client.send(1, "initialize", &json!({}));
    // The server has read the request; it ends without a response when there is nothing more to read.
    client.close_input();
    assert_eq!((client.read_line(), client.wait().code()), (None, Some(0)));
}

#[test]
fn large_results_and_logs_have_their_size() {
    let mut flood = StdioClient::connect(&mut server("send-100-mb"));
    flood.send(2, "tools/call", &json!({"name": "flood"}));
    assert!(flood.read_line().expect("a line").len() > 100 << 20);
    let mut big = StdioClient::connect(&mut server("big-result"));
    assert_eq!(big.call(2, "big", &json!({})).len(), 50 << 20);
    let mut logging = server("flood-stderr").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start it");
    let mut stderr = logging.stderr.take().expect("stderr is piped");
    let length = std::io::copy(&mut stderr.by_ref().take(200 << 20), &mut std::io::sink()).expect("read stderr");
    assert_eq!(length, 200 << 20);
    logging.kill().expect("kill the server");
    logging.wait().expect("wait for the server");
}

#[test]
fn invalid_messages_are_sent() {
    let mut duplicates = StdioClient::connect(&mut server("duplicate-ids"));
    duplicates.send(2, "tools/call", &json!({"name": "twice"}));
    let ids: Vec<_> = (0..9).map(|_| duplicates.receive()["id"].take()).collect();
    assert_eq!(json!(ids), json!([3, 4, 5, "2-other", null, -1, 1_u64 << 62, 2, 2]));
    let mut garbage = StdioClient::connect(&mut server("invalid-json"));
    garbage.send(2, "tools/call", &json!({"name": "garbage"}));
    for _ in 0..2 {
        let line = garbage.read_line().expect("a line");
        assert!(serde_json::from_str::<serde_json::Value>(&line).is_err(), "{line}");
    }
}

#[test]
fn tool_lists_are_long_endless_or_change() {
    assert_eq!(StdioClient::connect(&mut server("many-tools")).tools(2).len(), 500);
    let mut endless = StdioClient::connect(&mut server("endless-pages"));
    let page = endless.request(2, "tools/list", &json!({"cursor": "1000"}));
    assert_eq!(page["result"]["nextCursor"], "1001");
    let mut changing = StdioClient::connect(&mut server("change-tools"));
    let before = changing.tools(2);
    assert_eq!(changing.call(3, "change", &json!({})), "changed");
    assert_eq!(changing.receive()["method"], "notifications/tools/list_changed");
    let after = changing.tools(4);
    assert_eq!(after.len(), before.len() + 1);
    assert_eq!(before.iter().filter(|tool| !after.contains(tool)).count(), 1);
}

#[test]
fn signals_are_ignored_and_daemons_outlive_the_server() {
    let mut stubborn = StdioClient::connect(&mut server("ignore-sigterm"));
    kill_process(Pid::from_child(&stubborn.server), Signal::TERM).expect("signal the server");
    assert_eq!(stubborn.call(2, "echo", &json!({"message": "still here"})), "still here");

    let mark = format!("BAD_SERVER_MARK={}\0", std::process::id());
    let daemons = || -> Vec<Pid> {
        let is_marked = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment).contains(&mark)
        };
        let marked = process::all().into_iter().filter(is_marked);
        marked.filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).collect()
    };
    let mut parent =
        StdioClient::connect(server("fork-daemons").env("BAD_SERVER_MARK", std::process::id().to_string()));
    parent.close_input();
    parent.wait();
    let left = daemons();
    assert_eq!(left.len(), 3);
    for daemon in left {
        kill_process(daemon, Signal::KILL).expect("kill a daemon");
    }
    wait_until("a daemon is still running", || daemons().is_empty());
}
