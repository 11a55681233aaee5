//! That the bad server is as bad as it says: what is tested with it would otherwise prove nothing.

use std::fs;
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringfence_testkit::fixture_file;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::talk::Talk;

fn server(mode: &str) -> Command {
    let mut command = Command::new("/usr/bin/python3");
    command.arg(fixture_file("bad_server.py")).arg(mode).env("BAD_SERVER_SECONDS", "0.2").stderr(Stdio::null());
    command
}

#[test]
fn in_every_mode_that_starts_the_ordinary_tools_work() {
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
        let mut server = Talk::greet(&mut server(mode));
        assert_eq!(server.call(2, "echo", &json!({"message": mode})), mode);
        assert!(server.call(3, "read_path", &json!({"path": "/nowhere"})).starts_with("/nowhere: No such file"));
        assert_eq!(server.call(4, "sleep", &json!({"seconds": 0.01})), "slept");
    }
}

#[test]
fn it_dies_as_it_is_told() {
    let mut early = Talk::start(&mut server("die-at-start"));
    assert_eq!((early.line(), early.wait().code()), (None, Some(3)));
    let mut narrow = Talk::start(&mut server("no-discover"));
    narrow.say(1, "server/discover", &json!({}));
    assert_eq!((narrow.line(), narrow.wait().code()), (None, Some(1)));
    let mut late = Talk::greet(&mut server("die-in-call"));
    late.say(2, "tools/call", &json!({"name": "die"}));
    assert_eq!((late.line(), late.wait().signal()), (None, Some(9)));
}

#[test]
fn it_hangs_as_long_as_somebody_waits() {
    let mut silent = Talk::start(&mut server("hang-at-start"));
    silent.say(1, "initialize", &json!({}));
    // It has read that, and ends without a word only when there is no more to read.
    silent.end_input();
    assert_eq!((silent.line(), silent.wait().code()), (None, Some(0)));
}

#[test]
fn it_says_too_much() {
    let mut flood = Talk::greet(&mut server("send-100-mb"));
    flood.say(2, "tools/call", &json!({"name": "flood"}));
    assert!(flood.line().expect("a line").len() > 100 << 20);
    let mut big = Talk::greet(&mut server("big-result"));
    assert_eq!(big.call(2, "big", &json!({})).len(), 50 << 20);
    let mut noisy = server("flood-stderr").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut stderr = noisy.stderr.take().expect("it is piped");
    let written = std::io::copy(&mut stderr.by_ref().take(200 << 20), &mut std::io::sink()).expect("it is readable");
    assert_eq!(written, 200 << 20);
    noisy.kill().expect("it is ours");
    noisy.wait().expect("it is ours");
}

#[test]
fn it_says_what_makes_no_sense() {
    let mut twice = Talk::greet(&mut server("duplicate-ids"));
    twice.say(2, "tools/call", &json!({"name": "twice"}));
    let heard: Vec<_> = (0..9).map(|_| twice.hear()["id"].take()).collect();
    assert_eq!(json!(heard), json!([3, 4, 5, "2-other", null, -1, 1_u64 << 62, 2, 2]));
    let mut garbage = Talk::greet(&mut server("invalid-json"));
    garbage.say(2, "tools/call", &json!({"name": "garbage"}));
    for _ in 0..2 {
        let line = garbage.line().expect("a line");
        assert!(serde_json::from_str::<serde_json::Value>(&line).is_err(), "{line}");
    }
}

#[test]
fn its_tools_are_many_or_change() {
    assert_eq!(Talk::greet(&mut server("many-tools")).tools(2).len(), 500);
    let mut endless = Talk::greet(&mut server("endless-pages"));
    let page = endless.ask(2, "tools/list", &json!({"cursor": "1000"}));
    assert_eq!(page["result"]["nextCursor"], "1001");
    let mut changing = Talk::greet(&mut server("change-tools"));
    let before = changing.tools(2);
    assert_eq!(changing.call(3, "change", &json!({})), "changed");
    assert_eq!(changing.hear()["method"], "notifications/tools/list_changed");
    let after = changing.tools(4);
    assert_eq!(after.len(), before.len() + 1);
    assert_eq!(before.iter().filter(|tool| !after.contains(tool)).count(), 1);
}

#[test]
fn it_does_not_go_away() {
    let mut stubborn = Talk::greet(&mut server("ignore-sigterm"));
    kill_process(Pid::from_child(&stubborn.server), Signal::TERM).expect("it lives");
    assert_eq!(stubborn.call(2, "echo", &json!({"message": "still here"})), "still here");

    // One of the daemons ends only by itself or by SIGKILL, so that they must be found.
    let mark = format!("{}", std::process::id());
    let daemons = || -> Vec<Pid> {
        let processes = fs::read_dir("/proc").expect("there is /proc").flatten();
        let marked = processes.filter(|process| {
            let environment = fs::read(process.path().join("environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment).contains(&format!("BAD_SERVER_MARK={mark}\0"))
        });
        let ids = marked.filter_map(|process| process.file_name().to_str()?.parse().ok());
        ids.filter_map(Pid::from_raw).collect()
    };
    let mut father = Talk::greet(server("fork-daemons").env("BAD_SERVER_MARK", &mark));
    father.end_input();
    father.wait();
    let left = daemons();
    assert_eq!(left.len(), 3);
    for daemon in left {
        kill_process(daemon, Signal::KILL).expect("it lives");
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while !daemons().is_empty() {
        assert!(Instant::now() < deadline, "a daemon lives on");
        std::thread::sleep(Duration::from_millis(10));
    }
}
