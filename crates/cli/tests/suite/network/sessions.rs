//! The network of sessions: what they reach, refusals in responses, and rules that are added while they run.

use std::process::{Command, Output};

use ringfence_testkit::{Server, User, for_each_user};
use serde_json::{Value, json};

use super::serve;

/// Fetches a URL through the proxy, also one with a loopback address.
fn fetch(url: &str) -> String {
    format!(
        "import os, urllib.request, urllib.error
os.environ['no_proxy'] = os.environ['NO_PROXY'] = ''
try:
    print(urllib.request.urlopen('{url}', timeout=10).read().decode())
except urllib.error.HTTPError as error:
    print(error.code)
"
    )
}

pub(crate) fn network_lines(result: &Value) -> Vec<String> {
    let notices = result["notices"].as_array().into_iter().flatten().filter_map(Value::as_str);
    notices.filter(|line| line.starts_with("network: ")).map(str::to_owned).collect()
}

pub(crate) fn allow(user: User, server: &Server, arguments: &[&str]) -> Output {
    let mut command = user.ringfence();
    command.env("RINGFENCE_STATE_DIR", server.state.path());
    command.arg("allow").args(arguments).output().expect("run the command")
}

pub(crate) fn network_events(user: User, server: &Server, kind: &str) -> Vec<Value> {
    let mut command = user.ringfence();
    command.env("RINGFENCE_STATE_DIR", server.state.path());
    let output = command.args(["audit", "export"]).output().expect("run the command");
    let lines = String::from_utf8(output.stdout).expect("valid UTF-8");
    let events = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("valid JSON"));
    events.filter(|event| event["kind"] == kind).collect()
}

#[test]
fn refused_host_is_in_the_response_once_and_can_be_allowed() {
    let port = serve("allowed content");
    for_each_user("network::sessions::refused_host_is_in_the_response_once_and_can_be_allowed", |user| {
        let server = Server::start_as(user, &[], &[]);
        let code = fetch(&format!("http://127.0.0.1:{port}/"));
        let session = server.create_session("python", "1");
        let first = server.execute(&session, &format!("{code}\n{code}"));
        assert_eq!(first["stdout"], "403\n403\n", "{user:?}: {first}");
        let line = format!(
            "network: blocked 127.0.0.1:{port}, not on the allow list; to permit it: \
             ringfence allow session {session} 127.0.0.1:{port}"
        );
        assert_eq!(network_lines(&first), [line.as_str()], "{user:?}: one line for each host: {first}");
        let command = line.split_once("ringfence allow ").expect("a command").1;
        let allowed = allow(user, &server, &command.split(' ').collect::<Vec<_>>());
        assert!(allowed.status.success(), "{user:?}: {allowed:?}");
        let second = server.execute(&session, &code);
        assert_eq!((&second["stdout"], network_lines(&second)), (&json!("allowed content\n"), vec![]), "{second}");
        // Another session is not affected.
        let other = server.create_session("python", "1");
        assert_eq!(server.execute(&other, &code)["stdout"], "403\n");
        let state = server.stop();
        let server = Server::start_in(user, state, &[], &[]);
        let refused = network_events(user, &server, "network_refused");
        assert_eq!(refused.len(), 2, "{user:?}: one event for each host and call: {refused:?}");
        assert_eq!(network_events(user, &server, "network_allowed").len(), 1, "{user:?}");
    });
}

#[test]
fn flood_of_refused_hosts_is_shortened_in_the_response() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "1");
    let code = "import http.client
for number in range(100):
    connection = http.client.HTTPConnection('127.0.0.1', 3128)
    connection.request('GET', f'http://h{number}.test/')
    connection.getresponse().read()
";
    let lines = network_lines(&server.execute(&session, code));
    assert_eq!((lines.len(), lines[8].as_str()), (9, "network: and 92 more"), "{lines:?}");
    let next = server.execute(&session, "1");
    assert_eq!(network_lines(&next), Vec::<String>::new(), "{next}");
}

#[test]
fn added_rules_survive_the_death_of_the_server() {
    let port = serve("allowed content");
    for_each_user("network::sessions::added_rules_survive_the_death_of_the_server", |user| {
        let code = fetch(&format!("http://127.0.0.1:{port}/"));
        let server = Server::start_as(user, &[], &[]);
        let session = server.create_session("python", "x = 'kept'");
        let host = format!("127.0.0.1:{port}");
        assert!(allow(user, &server, &["session", &session, &host, "later.test:9"]).status.success());
        let server = Server::start_in(user, server.kill(), &[], &[]);
        let result = server.execute(&session, &format!("print(x)\n{code}"));
        assert_eq!(result["stdout"], "kept\nallowed content\n", "{user:?}: {result}");
        let (status, body) =
            server.http(&format!("GET /v1/sessions/{session}/allow"), &format!("Host: {}\r\n", server.address), "");
        let body: Value = serde_json::from_str(&body).expect("valid JSON");
        assert_eq!((status, &body["hosts"]), (200, &json!([host, "later.test:9"])), "{user:?}");
    });
}

#[test]
fn configured_hosts_are_reached_without_a_command() {
    let port = serve("allowed content");
    let host = format!("127.0.0.1:{port}");
    let server = Server::start(&["--allow", &host], &[]);
    let session = server.create_session("python", "1");
    let result = server.execute(&session, &fetch(&format!("http://{host}/")));
    assert_eq!(result["stdout"], "allowed content\n", "{result}");
    let tools = server.request("tools/list", &json!({}))["result"]["tools"].to_string();
    assert!(tools.contains(&format!("Network: package registries (pip, npm), {host} only.")), "{tools}");
    let invalid = Command::new(crate::BINARY).args(["serve", "--allow", "https://a.test"]).output().expect("run it");
    let message = String::from_utf8_lossy(&invalid.stderr).into_owned();
    assert!(!invalid.status.success() && message.contains("without scheme and path"), "{message}");
}

/// Sends a request to allow hosts with a token, or without one if it is empty. Returns the status and the body.
fn post_allow(server: &Server, session: &str, token: &str, hosts: &[&str]) -> (u16, Value) {
    let authorization = if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
    let headers = format!("Host: {}\r\nContent-Type: application/json\r\n{authorization}", server.address);
    let request = format!("POST /v1/sessions/{session}/allow");
    let (status, body) = server.http(&request, &headers, &json!({"hosts": hosts}).to_string());
    (status, serde_json::from_str(&body).expect("valid JSON"))
}

fn rest_session(server: &Server, token: &str) -> String {
    let headers =
        format!("Host: {}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n", server.address);
    let (_, body) = server.http("POST /v1/sessions", &headers, "{}");
    let session: Value = serde_json::from_str(&body).expect("valid JSON");
    session["session_id"].as_str().expect("a session").to_owned()
}

#[test]
fn only_tokens_extend_the_network_over_http_and_only_with_public_hosts() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("bash", "true");
    let (status, body) = post_allow(&server, &session, "", &["api.example.com"]);
    assert_eq!(status, 403, "an agent could send this request: {body}");
    assert!(body.to_string().contains("ringfence allow session"), "{body}");
    drop(server);

    let secret = "a-long-secret-of-a-program";
    let server = Server::start(&[], &[("RINGFENCE_AUTH_TOKEN", secret)]);
    let session = rest_session(&server, secret);
    let (status, body) = post_allow(&server, &session, secret, &["api.example.com", "*.example.com:8443"]);
    assert_eq!((status, &body["hosts"]), (200, &json!(["api.example.com", "*.example.com:8443"])));
    for private in ["db.corp+private", "127.0.0.1:80", "10.0.0.1", "169.254.169.254", "[::1]"] {
        let (status, body) = post_allow(&server, &session, secret, &["fine.example.com", private]);
        assert_eq!(status, 403, "{private}: {body}");
    }
    assert_eq!(post_allow(&server, &session, secret, &["not a host"]).0, 400);
    assert_eq!(post_allow(&server, &session, secret, &[]).0, 400);
    assert_eq!(post_allow(&server, "session-0", secret, &["api.example.com"]).0, 404);
    drop(server);

    let variables = [("RINGFENCE_AUTH_TOKEN", secret), ("RINGFENCE_SESSIONS_ASK", "false")];
    let server = Server::start(&[], &variables);
    let session = rest_session(&server, secret);
    assert_eq!(post_allow(&server, &session, secret, &["api.example.com"]).0, 403, "only the operator");
    assert!(allow(User::Root, &server, &["session", &session, "api.example.com"]).status.success());
}
