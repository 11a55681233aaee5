//! Two agents with a token each, on one server: isolation of their sessions, and limits per token.

use ringfence_testkit::Server;
use serde_json::{Value, json};

struct Agent<'a> {
    server: &'a Server,
    secret: &'a str,
}

impl Agent<'_> {
    fn headers(&self) -> String {
        let (address, secret) = (&self.server.address, self.secret);
        format!("Host: {address}\r\nContent-Type: application/json\r\nAuthorization: Bearer {secret}\r\n")
    }

    fn call(&self, tool: &str, arguments: &Value) -> Value {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}});
        let (_, body) = self.server.http("POST /mcp", &self.headers(), &call.to_string());
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }

    fn sessions(&self) -> Value {
        self.call("get_sessions", &json!({}))["result"]["structuredContent"]["sessions"].clone()
    }
}

#[test]
fn session_of_one_token_is_not_found_by_another() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let config = directory.path().join("ringfence.toml");
    std::fs::write(&config, "[server.tokens.one]\nenv = \"ONE\"\n[server.tokens.other]\nenv = \"OTHER\"\n")
        .expect("file is written");
    let variables = [("ONE", "the-secret-of-the-one"), ("OTHER", "the-secret-of-the-other")];
    let server = Server::start(&["--config", config.to_str().expect("path is UTF-8")], &variables);
    let [one, other] = variables.map(|(_, secret)| Agent { server: &server, secret });
    let created = one.call("execute_code", &json!({"code": "x = 'mine'"}));
    let session = created["result"]["structuredContent"]["session_id"].as_str().expect("session id").to_owned();
    let unknown = format!("session-{}", "0".repeat(32));
    assert_eq!((one.sessions().as_array().map(Vec::len), other.sessions()), (Some(1), json!([])));
    for (tool, more) in [
        ("execute_code", json!({"code": "print(x)"})),
        ("execute_command", json!({"command": "ls"})),
        ("get_sessions", json!({})),
        ("stop_session", json!({})),
        ("list_files", json!({})),
        ("read_file", json!({"path": "x"})),
        ("write_file", json!({"path": "x", "content": "y"})),
    ] {
        let call = |session: &str| {
            let mut arguments = more.clone();
            arguments["session_id"] = session.into();
            other.call(tool, &arguments).to_string().replace(session, "ID")
        };
        let response = call(&session);
        assert!(response.contains("SESSION_NOT_FOUND"), "{tool}: {response}");
        assert_eq!(response, call(&unknown), "{tool} reveals that the session exists");
    }
    for request in ["GET", "DELETE"] {
        let (status, _) = server.http(&format!("{request} /v1/sessions/{session}"), &other.headers(), "");
        assert_eq!(status, 404, "{request}");
    }
    let result = one.call("execute_code", &json!({"code": "print(x)", "session_id": session}));
    assert_eq!(result["result"]["structuredContent"]["stdout"], "mine\n");
}

/// Runs a check with two agents on a server with these settings.
fn with_two_agents(settings: &str, check: impl FnOnce(Agent<'_>, Agent<'_>)) {
    let directory = tempfile::tempdir().expect("temporary directory");
    let config = directory.path().join("ringfence.toml");
    let tokens = "[server.tokens.one]\nenv = \"ONE\"\n[server.tokens.other]\nenv = \"OTHER\"\n";
    std::fs::write(&config, format!("{settings}{tokens}")).expect("file is written");
    let variables = [("ONE", "the-secret-of-the-one"), ("OTHER", "the-secret-of-the-other")];
    let server = Server::start(&["--config", config.to_str().expect("path is UTF-8")], &variables);
    let [one, other] = variables.map(|(_, secret)| Agent { server: &server, secret });
    check(one, other);
}

#[test]
fn one_token_cannot_use_all_sessions() {
    with_two_agents("[sessions]\nmax_sessions = 4\npool = { python = 0, node = 0, bash = 0 }\n", |one, other| {
        let create_session =
            |agent: &Agent| agent.call("execute_command", &json!({"command": "true", "template": "bash"}));
        for _ in 0..3 {
            let created = create_session(&one);
            assert!(created["result"]["structuredContent"]["session_id"].is_string(), "{created}");
        }
        let refused = create_session(&one);
        assert_eq!(refused["error"]["data"]["error_code"], "RESOURCE_LIMIT_EXCEEDED", "{refused}");
        assert_eq!(refused["error"]["data"]["context"]["rule"], "sessions.max_sessions_per_principal", "{refused}");
        let created = create_session(&other);
        assert!(created["result"]["structuredContent"]["session_id"].is_string(), "{created}");
    });
}

#[test]
fn one_token_cannot_use_all_uploads() {
    with_two_agents("", |one, other| {
        let sessions = [&one, &other].map(|agent| {
            let created = agent.call("execute_command", &json!({"command": "true", "template": "bash"}));
            created["result"]["structuredContent"]["session_id"].as_str().expect("session id").to_owned()
        });
        let begin_upload = || {
            let mut stream = std::net::TcpStream::connect(&one.server.address).expect("server accepts connections");
            let path = format!("/v1/sessions/{}/files/x", sessions[0]);
            let head = format!("PUT {path} HTTP/1.1\r\n{}Content-Length: 9\r\n\r\n", one.headers());
            std::io::Write::write_all(&mut stream, head.as_bytes()).expect("server reads");
            stream
        };
        let mut unfinished: Vec<_> = (0..8).map(|_| begin_upload()).collect();
        let put = |agent: &Agent, session: &str| {
            agent.server.http(&format!("PUT /v1/sessions/{session}/files/y"), &agent.headers(), "content")
        };
        ringfence_testkit::wait_until("one token can use all uploads", || {
            // A `put` may have used the slot of an unfinished upload, which was then refused.
            unfinished.push(begin_upload());
            put(&one, &sessions[0]).1.contains("your token has 6 uploads in progress")
        });
        let (status, body) = put(&other, &sessions[1]);
        assert_eq!(status, 200, "{body}");
    });
}

/// Unauthenticated clients must not block clients with a token, whatever requests they leave unfinished.
#[test]
fn partial_requests_of_unauthenticated_clients_do_not_block_tokens() {
    with_two_agents("[server]\nmax_connections = 64\n", |one, _| {
        let connections: Vec<_> = (0..300)
            .map(|_| {
                let mut stream = std::net::TcpStream::connect(&one.server.address).expect("server accepts connections");
                let _ = std::io::Write::write_all(&mut stream, b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX: ");
                stream
            })
            .collect();
        for _ in 0..20 {
            assert_eq!(one.sessions(), json!([]));
        }
        drop(connections);
    });
}
