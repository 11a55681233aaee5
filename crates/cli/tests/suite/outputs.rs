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
        let last_block = long["content"].as_array().and_then(|blocks| blocks.last()).expect("a content block");
        assert!(last_block["text"].as_str().is_some_and(|text| text.contains(uri)), "{last_block}");
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

    for _ in 0..3 {
        run(&server, session, "seq 1 100000");
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
