//! `ringfence doctor`: what a person and a program read.

use std::path::Path;

use ringfence_testkit::{Outcome, User, for_each_user, process};

use crate::BINARY;

fn doctor(who: User, options: &[&str]) -> Outcome {
    process::run(who.ringfence().arg("doctor").args(options))
}

#[test]
fn the_default_configuration_can_run_and_ten_escapes_fail() {
    for_each_user("doctor", |who| {
        let outcome = doctor(who, &["--json"]);
        assert_eq!(outcome.code, 0, "{who:?}: {}", outcome.text());
        let findings: serde_json::Value = serde_json::from_slice(&outcome.stdout).expect("it is JSON");
        assert_eq!(findings["can_run"], true);
        let attempts = findings["self_test"]["attempts"].as_array().expect("attempts");
        assert_eq!(attempts.len(), 10, "{who:?}");
        assert!(attempts.iter().all(|attempt| attempt["contained"] == true), "{who:?}: {attempts:?}");
        for check in findings["checks"].as_array().expect("checks") {
            let lacking = check["state"] != "ok";
            assert_eq!(lacking, check["remedy"].is_string(), "{who:?}: a lack has a remedy: {check}");
        }
    });
}

#[test]
fn weaknesses_are_shown_with_their_remedy() {
    if let Some(reason) = User::Plain.unavailable() {
        return ringfence_testkit::skip("weaknesses_are_shown", &reason);
    }
    let text = doctor(User::Plain, &[]).text();
    assert!(text.contains("weaker   dedicated uid") && text.contains("hint: install the `uidmap` package"), "{text}");
    assert!(text.contains("keep your supplementary groups, and have at most 512 open files"), "{text}");
    assert!(text.contains("weaker   memory limit") && text.contains("systemd-run --user --scope"), "{text}");
    assert!(text.ends_with("The default configuration can run on this host.\n"), "{text}");
    let text = doctor(User::Root, &[]).text();
    assert!(
        text.contains("ok       dedicated uid          each sandbox has a uid that no other process has"),
        "{text}"
    );
}

/// The ten attempts outside of any sandbox: were they not contained, the doctor would say so.
#[test]
fn the_escapes_succeed_where_there_is_no_sandbox() {
    if let Some(reason) = User::Root.unavailable() {
        return ringfence_testkit::skip("the_escapes_succeed", &reason);
    }
    let port = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let name = format!("ringfence-escape-test-{}", std::process::id());
    let address = <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(&name);
    let _socket = std::os::unix::net::UnixListener::bind_addr(&address.expect("a name")).expect("a socket");
    // In namespaces that keep what the attempts change from the host, and with a PID 1 that is nobody's.
    let port = port.local_addr().expect("bound").port();
    let attempts = format!("{BINARY} escape --host-pid 1 --host-port {port} --host-socket {name}; :");
    let mut command = User::Root.program(Path::new("/usr/bin/unshare"));
    command.args(["--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc", "sh", "-c", &attempts]);
    let output = command.output().expect("it runs");
    let _ = std::fs::remove_file("/usr/ringfence-escape");
    let escaped =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).is_ok_and(|attempt| attempt["contained"] == false);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().filter(|line| escaped(line)).count(), 10, "{text}");
}
