//! Access of local users to a server on loopback without a token.

use std::path::Path;

use ringfence_testkit::{Server, User, for_each_user, run_python_as, skip};
use serde_json::{Value, json};

use crate::up::up;

/// Requests `GET /v1/sessions` with curl as a user of the host; returns the status and the body.
fn list_sessions(user: User, address: &str, options: &[&str]) -> (u16, String) {
    let url = format!("http://{address}/v1/sessions");
    let mut command = user.program(Path::new("/usr/bin/curl"));
    command.args(["-sS", "--max-time", "20", "-w", "\n%{http_code}", &url]).args(options);
    let output = command.output().expect("run curl");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').expect("curl prints the status");
    (status.parse().expect("a status code"), body.to_owned())
}

/// Returns an unprivileged user other than this one.
fn other_user(user: User) -> User {
    if user == User::Plain { User::WithSubids } else { User::Plain }
}

#[test]
fn other_local_users_are_refused_without_a_token() {
    for_each_user("other_local_users_are_refused_without_a_token", |user| {
        if let Some(reason) = other_user(user).unavailable() {
            return skip("other_local_users_are_refused_without_a_token", &reason);
        }
        let server = Server::start_as(user, &[], &[]);
        for allowed in [user, User::Root] {
            let (status, body) = list_sessions(allowed, &server.address, &[]);
            assert_eq!(status, 200, "{allowed:?} at the server of {user:?}: {body}");
        }
        let (status, body) = list_sessions(other_user(user), &server.address, &[]);
        assert_eq!(status, 403, "{user:?}: {body}");
        let uid = other_user(user).ids().0;
        assert!(body.contains(&format!("uid {uid}")) && body.contains("--allow-local-users"), "{user:?}: {body}");
        let refusal: Value = serde_json::from_str(&body).expect("the body is JSON");
        assert!(refusal["hint"].as_str().is_some_and(|hint| hint.contains("token")), "{refusal}");
    });
}

#[test]
fn local_users_are_accepted_with_option_variable_or_token() {
    if let Some(reason) = User::Plain.unavailable() {
        return skip("local_users_are_accepted_with_option_variable_or_token", &reason);
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
fn connections_from_a_supervisor_are_checked() {
    if let Some(reason) = User::Plain.unavailable() {
        return skip("connections_from_a_supervisor_are_checked", &reason);
    }
    let (server, _) = up(&[], &[]);
    assert_eq!(list_sessions(User::Root, &server.address, &[]).0, 200);
    assert_eq!(list_sessions(User::Plain, &server.address, &[]).0, 403);
}

#[test]
fn ipv6_loopback_is_checked() {
    if let Some(reason) = User::Plain.unavailable() {
        return skip("ipv6_loopback_is_checked", &reason);
    }
    let server = Server::start(&["--host", "::1"], &[]);
    assert_eq!(list_sessions(User::Root, &server.address, &[]).0, 200);
    assert_eq!(list_sessions(User::Plain, &server.address, &[]).0, 403);
}

/// Reaches the server through the egress proxy, whose connections have the uid of the server.
const FETCH_THROUGH_PROXY: &str = r"
import os, urllib.request, urllib.error
os.environ['no_proxy'] = os.environ['NO_PROXY'] = ''
request = urllib.request.Request(URL, headers=HEADERS)
try:
    print(urllib.request.urlopen(request, timeout=20).status)
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
";

#[test]
fn guests_are_not_accepted_as_the_user_of_the_server() {
    for_each_user("guests_are_not_accepted_as_the_user_of_the_server", |user| {
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
            let server = Server::start_as(user, &["--host", host], variables);
            let address = &server.address;
            let program = format!("URL = 'http://{address}/v1/sessions'\nHEADERS = {headers}\n{FETCH_THROUGH_PROXY}");
            let outcome = run_python_as(user, &["--network", &format!("allow={address}+private")], &program);
            let text = outcome.text();
            assert!(text.starts_with(expected), "{user:?} {host}: {text}{}", outcome.stderr);
            if expected == "403 " {
                assert!(text.contains("this connection comes from a sandbox"), "{user:?} {host}: {text}");
            }
        }
    });
}
