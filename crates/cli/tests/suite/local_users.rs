//! User may use a server on loopback that has no token.

use std::path::Path;

use ringfence_testkit::{Server, User, for_each_user, run_python_as, skip};
use serde_json::{Value, json};

use crate::up::up;

/// `GET /v1/sessions` with curl, as a user of the host: the status and the body.
fn list_sessions(who: User, address: &str, options: &[&str]) -> (u16, String) {
    let url = format!("http://{address}/v1/sessions");
    let mut command = who.program(Path::new("/usr/bin/curl"));
    command.args(["-sS", "--max-time", "20", "-w", "\n%{http_code}", &url]).args(options);
    let output = command.output().expect("curl runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').expect("curl prints the status");
    (status.parse().expect("a status"), body.to_owned())
}

/// Another ordinary user.
fn other(who: User) -> User {
    if who == User::Plain { User::WithSubids } else { User::Plain }
}

#[test]
fn other_local_users_are_refused_without_a_token() {
    for_each_user("other_local_users_are_refused", |who| {
        if let Some(reason) = other(who).unavailable() {
            return skip("other_local_users_are_refused", &reason);
        }
        let server = Server::start_as(who, &[], &[]);
        for allowed in [who, User::Root] {
            let (status, body) = list_sessions(allowed, &server.address, &[]);
            assert_eq!(status, 200, "{allowed:?} at the server of {who:?}: {body}");
        }
        let (status, body) = list_sessions(other(who), &server.address, &[]);
        assert_eq!(status, 403, "{who:?}: {body}");
        let uid = other(who).ids().0;
        assert!(body.contains(&format!("uid {uid}")) && body.contains("--allow-local-users"), "{who:?}: {body}");
        let refusal: Value = serde_json::from_str(&body).expect("JSON");
        assert!(refusal["hint"].as_str().is_some_and(|hint| hint.contains("token")), "{refusal}");
    });
}

#[test]
fn local_users_are_let_in_by_option_variable_or_token() {
    if let Some(reason) = User::Plain.unavailable() {
        return skip("local_users_are_let_in", &reason);
    }
    for server in
        [Server::start(&["--allow-local-users"], &[]), Server::start(&[], &[("RINGFENCE_ALLOW_LOCAL_USERS", "true")])]
    {
        assert_eq!(list_sessions(User::Plain, &server.address, &[]).0, 200);
    }
    let server = Server::start(&[], &[("RINGFENCE_AUTH_TOKEN", "a-long-secret-for-all")]);
    let header = "Authorization: Bearer a-long-secret-for-all";
    assert_eq!(list_sessions(User::Plain, &server.address, &["-H", header]).0, 200);
    assert_eq!(list_sessions(User::Root, &server.address, &[]).0, 401);
}

#[test]
fn connections_handed_on_by_a_supervisor_are_checked_too() {
    if let Some(reason) = User::Plain.unavailable() {
        return skip("connections_handed_on", &reason);
    }
    let (server, _) = up(&[], &[]);
    assert_eq!(list_sessions(User::Root, &server.address, &[]).0, 200);
    assert_eq!(list_sessions(User::Plain, &server.address, &[]).0, 403);
}

#[test]
fn ipv6_loopback_is_checked_too() {
    if let Some(reason) = User::Plain.unavailable() {
        return skip("ipv6_loopback_is_checked", &reason);
    }
    let server = Server::start(&["--host", "::1"], &[]);
    assert_eq!(list_sessions(User::Root, &server.address, &[]).0, 200);
    assert_eq!(list_sessions(User::Plain, &server.address, &[]).0, 403);
}

/// Reaches the server through the egress proxy, whose connections have the uid of the server.
const THROUGH_THE_PROXY: &str = r"
import os, urllib.request, urllib.error
os.environ['no_proxy'] = os.environ['NO_PROXY'] = ''
request = urllib.request.Request(URL, headers=HEADERS)
try:
    print(urllib.request.urlopen(request, timeout=20).status)
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
";

#[test]
fn guests_do_not_pass_as_the_user_of_the_server() {
    for_each_user("guests_do_not_pass", |who| {
        let secret = "a-long-secret-for-guests";
        for (host, variables, headers, expected) in [
            ("127.0.0.1", &[][..], "{}".to_owned(), "403 "),
            ("::1", &[], "{}".to_owned(), "403 "),
            ("127.0.0.1", &[("RINGFENCE_ALLOW_LOCAL_USERS", "true")], "{}".to_owned(), "403 "),
            (
                "127.0.0.1",
                &[("RINGFENCE_AUTH_TOKEN", secret)],
                json!({"Authorization": format!("Bearer {secret}")}).to_string(),
                "200",
            ),
        ] {
            let server = Server::start_as(who, &["--host", host], variables);
            let address = &server.address;
            let program = format!("URL = 'http://{address}/v1/sessions'\nHEADERS = {headers}\n{THROUGH_THE_PROXY}");
            let outcome = run_python_as(who, &["--network", &format!("allow={address}+private")], &program);
            let text = outcome.text();
            assert!(text.starts_with(expected), "{who:?} {host}: {text}{}", outcome.stderr);
            if expected == "403 " {
                assert!(text.contains("this connection comes from a sandbox"), "{who:?} {host}: {text}");
            }
        }
    });
}
