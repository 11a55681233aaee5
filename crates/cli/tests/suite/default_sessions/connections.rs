//! Which requests over HTTP belong together.

use ringfence_testkit::Server;
use serde_json::{Value, json};

use super::client::Http;
use super::{asks_for_id, code, fields, session_id, text};

/// Every tool that runs code, with a call that reports whether the variable `x` exists.
const RUN_TOOLS: [&str; 2] = ["execute_code", "run_python"];

fn has_x(response: &Value) -> bool {
    match text(response).lines().next() {
        Some("True") => true,
        Some("False") => false,
        _ => panic!("{response}"),
    }
}

#[test]
fn mcp_sessions_of_legacy_clients_have_separate_default_sessions() {
    let server = Server::start(&[], &[]);
    for path in ["/mcp", "/mcp/code"] {
        let (first, second) = (Http::legacy(&server, path), Http::legacy(&server, path));
        for tool in RUN_TOOLS.into_iter().filter(|tool| path == "/mcp" || *tool == "run_python") {
            let created = first.call(tool, &code("x = 1"));
            assert!(!asks_for_id(&created), "{created}");
            assert!(has_x(&first.call(tool, &code("'x' in globals()"))), "{path} {tool}");
            let of_second = second.call(tool, &code("'x' in globals()"));
            assert!(!has_x(&of_second) && session_id(&of_second) != session_id(&created), "{of_second}");
        }
    }
}

#[test]
fn clients_without_a_connection_never_share_a_session() {
    let server = Server::start(&[], &[]);
    for client in [Http::bare(&server, "/mcp"), Http::modern(&server, "/mcp"), Http::modern(&server, "/mcp/code")] {
        for tool in RUN_TOOLS.into_iter().filter(|tool| client.path == "/mcp" || *tool == "run_python") {
            let first = client.call(tool, &code("x = 1"));
            assert!(fields(&first)["session_created"] == true && asks_for_id(&first), "{first}");
            let second = client.call(tool, &code("'x' in globals()"));
            assert!(!has_x(&second) && session_id(&second) != session_id(&first), "{second}");
            let continued = client.call(tool, &json!({"code": "'x' in globals()", "session_id": session_id(&first)}));
            assert!(has_x(&continued) && session_id(&continued) == session_id(&first), "{continued}");
            assert!(!text(&continued).contains("session_id"), "{continued}");
        }
    }
    // The era is decided by the request: a header of the older one does not bind a request of the newer one.
    let confused = Http { headers: "Mcp-Session-Id: one\r\n".into(), ..Http::modern(&server, "/mcp") };
    assert!(asks_for_id(&confused.call("run_python", &code("x = 1"))));
    assert!(!has_x(&confused.call("run_python", &code("'x' in globals()"))));
}

#[test]
fn file_tools_without_a_connection_need_an_id() {
    let server = Server::start(&[], &[]);
    for client in [Http::bare(&server, "/mcp"), Http::modern(&server, "/mcp")] {
        for (tool, arguments) in [
            ("read_file", json!({"path": "a"})),
            ("write_file", json!({"path": "a", "content": ""})),
            ("list_files", json!({})),
        ] {
            let refused = client.call(tool, &arguments).to_string();
            assert!(refused.contains("session_id is required") && refused.contains("?session=NAME"), "{refused}");
        }
        let sessions = client.call("get_sessions", &json!({}));
        assert_eq!(fields(&sessions)["sessions"], json!([]), "no session was created");
    }
}

#[test]
fn new_sessions_of_failed_calls_do_not_remain() {
    let server = Server::start(&[], &[]);
    let client = Http::bare(&server, "/mcp");
    let failed = client.call("run_python", &json!({"code": "1", "servers": ["absent"]}));
    assert!(failed.to_string().contains("absent"), "{failed}");
    assert_eq!(fields(&client.call("get_sessions", &json!({})))["sessions"], json!([]));
}

#[test]
fn end_of_an_mcp_session_leaves_its_session_to_its_id() {
    let server = Server::start(&[], &[]);
    let client = Http::legacy(&server, "/mcp");
    let created = client.call("execute_code", &code("x = 1"));
    client.delete();
    let (head, _) = client.send("execute_code", &code("x"));
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    // Clients that connect for each call may still pass the id.
    let next = Http::legacy(&server, "/mcp");
    assert!(!has_x(&next.call("execute_code", &code("'x' in globals()"))));
    let arguments = json!({"code": "'x' in globals()", "session_id": session_id(&created)});
    assert!(has_x(&next.call("execute_code", &arguments)));
    let headers = client.headers.clone();
    let server = Server::start_again(server.kill(), &[], &[]);
    let revived = Http { headers, ..Http::bare(&server, "/mcp") };
    assert!(!has_x(&revived.call("execute_code", &code("'x' in globals()"))), "the store has forgotten it too");
}

#[test]
fn default_session_of_an_mcp_session_survives_a_killed_server() {
    let server = Server::start(&[], &[]);
    let client = Http::legacy(&server, "/mcp");
    client.call("execute_code", &code("x = 1"));
    let headers = client.headers.clone();
    let server = Server::start_again(server.kill(), &[], &[]);
    let client = Http { headers, ..Http::bare(&server, "/mcp") };
    assert!(has_x(&client.call("execute_code", &code("'x' in globals()"))));
}
