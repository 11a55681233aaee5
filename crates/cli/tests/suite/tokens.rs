//! Two agents with a token each, on one server.

use serde_json::{Value, json};

use crate::server::Server;

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
        let (_, body) = self.server.ask("POST /mcp", &self.headers(), &call.to_string());
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }

    fn sessions(&self) -> Value {
        self.call("get_sessions", &json!({}))["result"]["structuredContent"]["sessions"].clone()
    }
}

#[test]
fn a_session_of_one_token_is_not_there_for_another() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("ringfence.toml");
    std::fs::write(&config, "[server.tokens.one]\nenv = \"ONE\"\n[server.tokens.other]\nenv = \"OTHER\"\n")
        .expect("it is written");
    let variables = [("ONE", "the-secret-of-the-one"), ("OTHER", "the-secret-of-the-other")];
    let server = Server::start(&["--config", config.to_str().expect("it is text")], &variables);
    let [one, other] = variables.map(|(_, secret)| Agent { server: &server, secret });
    let made = one.call("execute_code", &json!({"code": "x = 'mine'"}));
    let session = made["result"]["structuredContent"]["session_id"].as_str().expect("a session").to_owned();
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
        let ask = |session: &str| {
            let mut arguments = more.clone();
            arguments["session_id"] = session.into();
            other.call(tool, &arguments).to_string().replace(session, "ID")
        };
        let answer = ask(&session);
        assert!(answer.contains("SESSION_NOT_FOUND"), "{tool}: {answer}");
        assert_eq!(answer, ask(&unknown), "{tool} answers as for one that never was");
    }
    for request in ["GET", "DELETE"] {
        let (status, _) = server.ask(&format!("{request} /v1/sessions/{session}"), &other.headers(), "");
        assert_eq!(status, 404, "{request}");
    }
    let kept = one.call("execute_code", &json!({"code": "print(x)", "session_id": session}));
    assert_eq!(kept["result"]["structuredContent"]["stdout"], "mine\n");
}
