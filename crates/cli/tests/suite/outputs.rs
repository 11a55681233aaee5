//! Output that is too long for its response: its resource, how long it is stored, and who may read it.

use ringfence_testkit::Server;
use serde_json::{Value, json};

fn run(server: &Server, session: &Value, command: &str) -> Value {
    let mut arguments = json!({"command": command});
    if session.is_string() {
        arguments["session_id"] = session.clone();
    }
    let response = server.call("execute_command", &arguments);
    assert_eq!(response["result"]["isError"], false, "{response}");
    response["result"].clone()
}

fn read(server: &Server, uri: &str) -> Result<Value, Value> {
    let mut response = server.request("resources/read", &json!({"uri": uri}));
    if response["error"].is_null() { Ok(response["result"]["contents"].take()) } else { Err(response["error"].take()) }
}

#[test]
fn long_output_can_be_read_in_full() {
    let server = Server::start(&[], &[]);
    let templates = server.request("resources/templates/list", &json!({}));
    let template = &templates["result"]["resourceTemplates"][0]["uriTemplate"];
    assert_eq!(template, "ringfence://sessions/{session_id}/outputs/{number}", "{templates}");

    let short = run(&server, &Value::Null, "seq 1 10");
    let session = &short["structuredContent"]["session_id"];
    assert_eq!((&short["structuredContent"]["stdout_resource"], session.is_string()), (&Value::Null, true));

    let long = run(&server, session, "seq 1 100000; seq 1 60000 >&2");
    let sequence = |last: u32| (1..=last).flat_map(|number| [number.to_string(), "\n".into()]).collect::<String>();
    for (field, last) in [("stdout_resource", 100_000), ("stderr_resource", 60_000)] {
        let uri = long["structuredContent"][field].as_str().expect("a resource URI");
        let status = long["content"][0]["text"].as_str().and_then(|text| text.lines().last()).expect("a status line");
        assert!(status.contains(uri), "{status}");
        let contents = read(&server, uri).expect("read the resource");
        assert!(contents[0]["text"] == sequence(last).as_str() && contents[0]["uri"] == uri, "{field}");
        assert_eq!(contents[1], Value::Null);
    }

    // The REST route returns the same.
    let uri = long["structuredContent"]["stdout_resource"].as_str().expect("a resource URI");
    let path = uri.replace("ringfence://", "/v1/");
    let (status, body) = server.http(&format!("GET {path}"), &format!("Host: {}\r\n", server.address), "");
    assert!(status == 200 && body == sequence(100_000), "{status}");
}

#[test]
fn stored_outputs_are_bounded() {
    let server = Server::start(&[], &[]);
    let flood = run(&server, &Value::Null, "head -c 20000000 /dev/zero | tr '\\0' x");
    let session = &flood["structuredContent"]["session_id"];
    let first = flood["structuredContent"]["stdout_resource"].as_str().expect("a resource URI");
    let contents = read(&server, first).expect("read the resource");
    assert_eq!(contents[0]["text"].as_str().map(str::len), Some(8 << 20));
    assert_eq!(contents[1]["text"], format!("{} more bytes were not stored", 20_000_000 - (8 << 20)));

    let binary = run(&server, session, "head -c 200000 /dev/zero | tr '\\0' '\\377'");
    let contents = read(&server, binary["structuredContent"]["stdout_resource"].as_str().expect("a resource URI"));
    assert!(contents.expect("read the resource")[0]["blob"].as_str().is_some_and(|blob| blob.starts_with("////")));

    for _ in 0..4 {
        run(&server, session, "head -c 9000000 /dev/zero | tr '\\0' x");
    }
    let evicted = read(&server, first).expect_err("the oldest output is deleted first");
    assert!(evicted["message"].as_str().is_some_and(|text| text.contains("not available")), "{evicted}");
    let id = session.as_str().expect("an id");
    let unknown = read(&server, &first.replace(id, "session-0")).expect_err("there is no such session");
    assert_eq!(unknown["data"]["error_code"], "SESSION_NOT_FOUND");
    server.call("stop_session", &json!({"session_id": session}));
    let stopped = read(&server, first).expect_err("the output is deleted with its session");
    assert_eq!(
        stopped["message"].as_str().map(|text| text.replace(id, "session-0")).as_deref(),
        unknown["message"].as_str()
    );
}

#[test]
fn long_output_costs_a_model_at_most_the_limit_once() {
    const LIMIT: usize = 16 << 10;
    let server = Server::start(&[], &[]);
    for (tool, arguments) in [
        ("execute_code", json!({"code": "print('x' * 4_999_999)"})),
        ("execute_command", json!({"command": "head -c 5000000 /dev/zero | tr '\\0' x"})),
        ("execute_code", json!({"code": "print('x' * 20_000)"})),
    ] {
        let response = server.call(tool, &arguments);
        let result = &response["result"];
        let text = result["content"][0]["text"].as_str().expect("a text");
        assert_eq!(result["content"].as_array().map(Vec::len), Some(1));
        assert!(text.len() > LIMIT && result.to_string().len() < LIMIT + 2000, "{}", result.to_string().len());
        let uri = result["structuredContent"]["stdout_resource"].as_str().expect("a resource URI");
        assert!(text.contains("bytes dropped …]\n") && text.lines().last().is_some_and(|line| line.contains(uri)));
        let whole = read(&server, uri).expect("read the resource");
        let printed = whole[0]["text"].as_str().map(|text| text.matches('x').count());
        assert!(matches!(printed, Some(4_999_999 | 5_000_000 | 20_000)), "{printed:?}");
    }
    let limited = Server::start(&[], &[("RINGFENCE_SESSIONS_MAX_RESULT_TEXT", "2K")]);
    let result = &limited.call("execute_code", &json!({"code": "print('x' * 5000)"}))["result"];
    assert!(result.to_string().len() < 4000, "{result}");
}

#[test]
fn resources_of_a_session_are_read_by_its_owner_only() {
    let directory = tempfile::tempdir().expect("create a directory");
    let config = directory.path().join("ringfence.toml");
    std::fs::write(&config, "[server.tokens.one]\nenv = \"ONE\"\n[server.tokens.other]\nenv = \"OTHER\"\n")
        .expect("write the file");
    let variables = [("ONE", "the-secret-of-the-one"), ("OTHER", "the-secret-of-the-other")];
    let server = Server::start(&["--config", config.to_str().expect("a UTF-8 path")], &variables);
    let request = |secret: &str, method: &str, params: Value| -> Value {
        let headers =
            format!("Host: {}\r\nContent-Type: application/json\r\nAuthorization: Bearer {secret}\r\n", server.address);
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        serde_json::from_str(&server.http("POST /mcp", &headers, &body).1).expect("the body is JSON")
    };
    let [(_, one), (_, other)] = variables;
    let code =
        "class B:\n def _repr_html_(self): return '<b>'\nopen('file', 'w').write('mine')\nprint('x' * 99_999)\nB()";
    let created = request(one, "tools/call", json!({"name": "execute_code", "arguments": {"code": code}}));
    let fields = &created["result"]["structuredContent"];
    let session = fields["session_id"].as_str().expect("an id");
    let display = created["result"]["content"].as_array().and_then(|blocks| blocks.last()).expect("a block");
    for uri in [
        fields["stdout_resource"].clone(),
        display["resource"]["uri"].clone(),
        json!(format!("ringfence://sessions/{session}/files/workspace/file")),
    ] {
        let uri = uri.as_str().unwrap_or_else(|| panic!("no URI: {created}"));
        let own = request(one, "resources/read", json!({"uri": uri}));
        assert!(own["result"]["contents"][0]["text"].is_string(), "{own}");
        let read = |uri: &str| request(other, "resources/read", json!({"uri": uri}))["error"].to_string();
        let refused = read(uri);
        assert!(refused.contains("SESSION_NOT_FOUND"), "{refused}");
        let unknown = "session-0";
        assert_eq!(
            refused.replace(session, unknown),
            read(&uri.replace(session, unknown)),
            "the session is not revealed"
        );
    }
}
