//! Rules for requests: a host of which a session may use some methods and paths.

use std::fs;
use std::process::Stdio;

use ringfence_testkit::{Server, User, process};
use serde_json::Value;

use super::reach::{WITHOUT_PROXY, run};
use super::sessions::{allow, network_lines};
use super::test_network::TestNetwork;

const CONFIGURATION: &str = r#"
[sessions]
ask = false
allow = [
    { host = "example.test+private", methods = ["GET"], paths = ["/repos/me/*", "/user"] },
    { host = "example.test+private", methods = ["HEAD"], paths = ["/index.html"] },
]
"#;

/// Arguments of curl, and the reason why the request is refused.
const REQUESTS: [(&str, Option<&str>); 11] = [
    ("URL/user", None),
    ("URL/user?query=1", None),
    ("URL/repos/me/a/b", None),
    ("-I URL/index.html", None),
    ("-I URL/user", Some("wrong-method")),
    ("-d a=b URL/user", Some("wrong-method")),
    ("URL/", Some("wrong-path")),
    ("URL/repos/me", Some("wrong-path")),
    ("URL/repos/other/x", Some("wrong-path")),
    ("--path-as-is URL/repos/me/../other/x", Some("ambiguous-path")),
    ("-H 'X-HTTP-Method-Override: DELETE' URL/user", Some("request-override")),
];

fn write_pages(network: &TestNetwork) {
    for path in ["user", "repos/me/a/b"] {
        let path = network.path().join("pages").join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("create a directory");
        fs::write(path, "allowed content\n").expect("write the page");
    }
}

fn start(network: &TestNetwork, user: User) -> Server {
    write_pages(network);
    // The certificate of the host is verified with the authorities that the server trusts.
    let trust = network.path().join("trusted/ca.pem");
    network.server_with(user, CONFIGURATION, &[("SSL_CERT_FILE", trust.to_str().expect("valid UTF-8"))])
}

fn requests_in(log: &[String]) -> Vec<&String> {
    log.iter().filter(|line| line.starts_with("request")).collect()
}

#[test]
fn only_requests_with_a_rule_arrive() {
    const TEST: &str = "network::requests::only_requests_with_a_rule_arrive";
    let Some(network) = TestNetwork::enter(TEST) else { return };
    for user in [User::Root, User::Plain] {
        if user.skip_if_unavailable(TEST) {
            continue;
        }
        let server = start(&network, user);
        let session = server.create_session("bash", "true");
        for (arguments, reason) in REQUESTS {
            for (scheme, prefix) in
                [("http", "env"), ("http", WITHOUT_PROXY), ("https", "env"), ("https", WITHOUT_PROXY)]
            {
                let arguments = arguments.replace("URL", &format!("{scheme}://example.test"));
                let result = run(&server, &session, &format!("{prefix} curl -sS -i {arguments}"));
                let stdout = result["stdout"].as_str().unwrap_or_default();
                let (log, lines) = (network.take_log(), network_lines(&result));
                let Some(reason) = reason else {
                    assert!(stdout.contains("200 OK") && lines.is_empty(), "{user:?}: {prefix} {arguments}: {result}");
                    assert_eq!(requests_in(&log).len(), 1, "{user:?}: {prefix} {arguments}: {log:?}");
                    continue;
                };
                let is_refused = stdout.contains(" 403 ")
                    && stdout.to_ascii_lowercase().contains(&format!("x-ringfence-reason: {reason}"));
                assert!(is_refused, "{user:?}: {prefix} {arguments}: {result}");
                let is_named = lines.len() == 1 && lines[0].starts_with("network: blocked example.test:");
                assert!(is_named, "{user:?}: {prefix} {arguments}: {result}");
                assert_eq!(requests_in(&log), Vec::<&String>::new(), "{user:?}: {prefix} {arguments}");
            }
        }
    }
}

#[test]
fn requests_of_run_are_checked_too() {
    const TEST: &str = "network::requests::requests_of_run_are_checked_too";
    let Some(network) = TestNetwork::enter(TEST) else { return };
    write_pages(&network);
    for user in User::ALL {
        if user.skip_if_unavailable(TEST) {
            continue;
        }
        for scheme in ["http", "https"] {
            for prefix in ["env", WITHOUT_PROXY] {
                let fetch = |path: &str| {
                    let mut command = network.ringfence(user);
                    command.env("SSL_CERT_FILE", network.path().join("trusted/ca.pem"));
                    command.args(["run", "--template", "bash", "--network"]);
                    command.arg("allow=example.test+private method=GET path=/user");
                    command.args(["--", "bash", "-c", &format!("{prefix} curl -sS -i {scheme}://example.test{path}")]);
                    process::run(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
                };
                let allowed = fetch("/user");
                assert!(allowed.text().contains("allowed content"), "{user:?}: {scheme}: {prefix}: {allowed:?}");
                network.take_log();
                let refused = fetch("/repos/me/a/b");
                assert!(refused.text().contains("403 Forbidden"), "{user:?}: {scheme}: {prefix}: {refused:?}");
                let line = "ringfence: network: blocked example.test:";
                assert_eq!(refused.stderr.matches(line).count(), 1, "{user:?}: {scheme}: {prefix}: {refused:?}");
                assert_eq!(requests_in(&network.take_log()), Vec::<&String>::new(), "{user:?}: {scheme}: {prefix}");
            }
        }
    }
}

#[test]
fn later_request_of_a_connection_is_checked_too() {
    const TEST: &str = "network::requests::later_request_of_a_connection_is_checked_too";
    let Some(network) = TestNetwork::enter(TEST) else { return };
    let server = start(&network, User::Root);
    let session = server.create_session("python", "import http.client, ssl");
    for connection in ["HTTPConnection('example.test')", "HTTPSConnection('example.test')"] {
        let code = format!(
            "connection = http.client.{connection}
for method, path in [('GET', '/user'), ('GET', '/secret'), ('DELETE', '/user'), ('GET', '/user')]:
    connection.request(method, path)
    response = connection.getresponse()
    print(response.status, response.read()[:7])"
        );
        let result = server.execute(&session, &code);
        let expected = "200 b'allowed'\n403 b'ringfen'\n403 b'ringfen'\n200 b'allowed'\n";
        assert_eq!(result["stdout"], expected, "{connection}: {result}");
        let log = network.take_log();
        let paths: Vec<&str> = requests_in(&log).iter().filter_map(|line| line.rsplit(' ').next()).collect();
        assert_eq!(paths, ["/user", "/user"], "{connection}");
    }
}

#[test]
fn rule_without_methods_and_paths_allows_all_requests() {
    const TEST: &str = "network::requests::rule_without_methods_and_paths_allows_all_requests";
    let Some(network) = TestNetwork::enter(TEST) else { return };
    let server = start(&network, User::Root);
    let session = server.create_session("bash", "true");
    let fetch = "curl -sS https://example.test/index.html";
    let refused = run(&server, &session, fetch);
    assert_eq!(network_lines(&refused).len(), 1, "{refused}");
    let allowed = allow(User::Root, &server, &["session", &session, "example.test+private"]);
    assert!(allowed.status.success(), "{allowed:?}");
    let result = run(&server, &session, fetch);
    assert_eq!((&result["stdout"], network_lines(&result)), (&Value::from("allowed content\n"), vec![]), "{result}");
}
