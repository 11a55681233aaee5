//! Names of default sessions in the URL.

use ringfence_testkit::Server;
use serde_json::json;

use super::client::Http;
use super::{asks_for_id, code, fields, session_id, text};

const NAMED: &str = "/mcp?session=agent-1";

/// The tokens of two principals.
const VARIABLES: [(&str, &str); 2] = [("ONE", "the-secret-of-the-one"), ("OTHER", "the-secret-of-the-other")];

#[test]
fn name_in_url_keeps_state_for_clients_of_every_kind() {
    let server = Server::start(&[], &[]);
    let clients = [Http::modern(&server, NAMED), Http::bare(&server, NAMED), Http::legacy(&server, NAMED)];
    let first = clients[0].call("execute_code", &code("x = 40"));
    assert!(fields(&first)["session_created"] == true && !asks_for_id(&first), "{first}");
    clients[1].call("write_file", &json!({"path": "a.txt", "content": "2"}));
    for client in &clients {
        let result = client.call("execute_code", &code("x + int(open('a.txt').read())"));
        assert_eq!((&fields(&result)["result"], session_id(&result)), (&json!("42"), session_id(&first)));
        assert_eq!(text(&client.call("run_python", &code("x"))), "40");
    }
    let other = Http::modern(&server, "/mcp?x=1&session=agent-2").call("execute_code", &code("'x' in globals()"));
    assert_eq!(fields(&other)["result"], "False", "{other}");
}

#[test]
fn name_belongs_to_its_profile() {
    let server = Server::start(&[], &[]);
    let in_profile = Http::modern(&server, "/mcp/code?session=agent-1");
    Http::modern(&server, NAMED).call("run_python", &code("x = 1"));
    let created = in_profile.call("run_python", &code("'x' in globals()"));
    assert!(text(&created).starts_with("False"), "{created}");
    in_profile.call("run_python", &code("x = 2"));
    assert_eq!(text(&in_profile.call("run_python", &code("x"))), "2");
}

fn clients(server: &Server) -> [Http<'_>; 2] {
    VARIABLES.map(|(_, secret)| Http::modern(server, NAMED).with_token(secret))
}

#[test]
fn name_belongs_to_its_principal() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let config = directory.path().join("ringfence.toml");
    std::fs::write(&config, "[server.tokens.one]\nenv = \"ONE\"\n[server.tokens.other]\nenv = \"OTHER\"\n")
        .expect("file is written");
    let options = ["--config", config.to_str().expect("path is UTF-8")];
    let server = Server::start(&options, &VARIABLES);
    let check = |[one, other]: &[Http<'_>; 2]| {
        for tool in ["execute_code", "run_python"] {
            assert!(text(&one.call(tool, &code("x"))).starts_with("'mine'"), "{tool}");
            assert!(text(&other.call(tool, &code("'x' in globals()"))).starts_with("False"), "{tool}");
        }
    };
    let both = clients(&server);
    both[0].call("execute_code", &code("x = 'mine'"));
    check(&both);
    let server = Server::start_again(server.kill(), &options, &VARIABLES);
    check(&clients(&server));
}

#[test]
fn hostile_names_are_refused() {
    let server = Server::start(&[], &[]);
    let long = "x".repeat(65);
    for query in ["session=", "session", "session=../a", "session=a%00", "session=a%2Fb", "session=a&session=b"]
        .into_iter()
        .chain([format!("session={long}").as_str()])
    {
        for client in [Http::bare(&server, &format!("/mcp?{query}")), Http::modern(&server, &format!("/mcp?{query}"))] {
            let (head, body) = client.send("execute_code", &code("1"));
            assert!(head.starts_with("HTTP/1.1 400") && body.contains("session name"), "{query}: {head} {body}");
        }
    }
    let longest = Http::bare(&server, &format!("/mcp?session={}", &long[1..]));
    assert_eq!(fields(&longest.call("execute_code", &code("1")))["result"], "1");
    let sessions = Http::bare(&server, "/mcp").call("get_sessions", &json!({}));
    assert_eq!(fields(&sessions)["sessions"].as_array().map(Vec::len), Some(1), "{sessions}");
}

#[test]
fn named_sessions_survive_a_killed_server() {
    let server = Server::start(&[], &[]);
    let client = Http::modern(&server, NAMED);
    client.call("execute_code", &code("x = 1"));
    client.call("execute_code", &json!({"code": "var y = 2", "template": "node"}));
    client.call("write_file", &json!({"path": "a.txt", "content": "text"}));
    let server = Server::start_again(server.kill(), &[], &[]);
    let client = Http::modern(&server, NAMED);
    assert_eq!(fields(&client.call("execute_code", &code("x")))["result"], "1");
    let node = client.call("execute_code", &json!({"code": "y", "template": "node"}));
    assert_eq!((&fields(&node)["result"], &fields(&node)["session_created"]), (&json!("2"), &json!(false)), "{node}");
    assert_eq!(fields(&client.call("read_file", &json!({"path": "a.txt"})))["content"], "text");
}
