//! `ringfence doctor`: its text and JSON output, and the escape attempts of its self-test.

use std::path::Path;

use ringfence_testkit::{Outcome, User, for_each_user, process};

use crate::BINARY;

fn doctor(user: User, options: &[&str]) -> Outcome {
    process::run(user.ringfence().arg("doctor").args(options))
}

#[test]
fn default_configuration_runs_and_self_test_contains_ten_escapes() {
    for_each_user("default_configuration_runs_and_self_test_contains_ten_escapes", |user| {
        let outcome = doctor(user, &["--json"]);
        assert_eq!(outcome.code, 0, "{user:?}: {}", outcome.text());
        let findings: serde_json::Value = serde_json::from_slice(&outcome.stdout).expect("output is JSON");
        assert_eq!(findings["can_run"], true);
        let attempts = findings["self_test"]["attempts"].as_array().expect("list of attempts");
        assert_eq!(attempts.len(), 10, "{user:?}");
        assert!(attempts.iter().all(|attempt| attempt["contained"] == true), "{user:?}: {attempts:?}");
        for check in findings["checks"].as_array().expect("list of checks") {
            let is_lacking = check["state"] != "ok";
            assert_eq!(is_lacking, check["remedy"].is_string(), "{user:?}: only a failed check has a remedy: {check}");
        }
    });
}

#[test]
fn weaknesses_are_shown_with_their_remedy() {
    if let Some(reason) = User::Plain.unavailable() {
        return ringfence_testkit::skip("weaknesses_are_shown_with_their_remedy", &reason);
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

/// Control: the ten attempts of the self-test succeed outside of a sandbox, so the doctor would detect an escape.
#[test]
fn escapes_succeed_without_sandbox() {
    if let Some(reason) = User::Root.unavailable() {
        return ringfence_testkit::skip("escapes_succeed_without_sandbox", &reason);
    }
    let port = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("free port");
    let name = format!("ringfence-escape-test-{}", std::process::id());
    let address = <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(&name);
    let _socket = std::os::unix::net::UnixListener::bind_addr(&address.expect("valid name")).expect("abstract socket");
    // The namespaces protect the host from changes by the attempts, and provide a PID 1 that the attempts may attack.
    let port = port.local_addr().expect("listener is bound").port();
    let attempts = format!("{BINARY} escape --host-pid 1 --host-port {port} --host-socket {name}; :");
    let mut command = User::Root.program(Path::new("/usr/bin/unshare"));
    command.args(["--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc", "sh", "-c", &attempts]);
    let output = command.output().expect("command runs");
    let _ = std::fs::remove_file("/usr/ringfence-escape");
    let escaped =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).is_ok_and(|attempt| attempt["contained"] == false);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().filter(|line| escaped(line)).count(), 10, "{text}");
}
