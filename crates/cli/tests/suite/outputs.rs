//! Output too long for its answer: where the whole of it is, for how long, and for whom.

use ringfence_testkit::Server;
use serde_json::{Value, json};

fn run(server: &Server, session: &Value, command: &str) -> Value {
    let mut arguments = json!({"command": command});
    if session.is_string() {
        arguments["session_id"] = session.clone();
    }
    let answer = server.call("execute_command", &arguments);
    assert_eq!(answer["result"]["isError"], false, "{answer}");
    answer["result"].clone()
}

fn read(server: &Server, uri: &str) -> Result<Value, Value> {
    let mut answer = server.request("resources/read", &json!({"uri": uri}));
    if answer["error"].is_null() { Ok(answer["result"]["contents"].take()) } else { Err(answer["error"].take()) }
}

#[test]
fn a_long_output_can_be_read_in_full() {
    let server = Server::start(&[], &[]);
    let templates = server.request("resources/templates/list", &json!({}));
    let template = &templates["result"]["resourceTemplates"][0]["uriTemplate"];
    assert_eq!(template, "ringfence://sessions/{session_id}/outputs/{number}", "{templates}");

    let short = run(&server, &Value::Null, "seq 1 10");
    let session = &short["structuredContent"]["session_id"];
    assert_eq!((&short["structuredContent"]["stdout_resource"], session.is_string()), (&Value::Null, true));

    let long = run(&server, session, "seq 1 100000; seq 1 60000 >&2");
    let whole = |last: u32| (1..=last).flat_map(|number| [number.to_string(), "\n".into()]).collect::<String>();
    for (field, last) in [("stdout_resource", 100_000), ("stderr_resource", 60_000)] {
        let uri = long["structuredContent"][field].as_str().expect("it says where");
        let closing = long["content"].as_array().and_then(|blocks| blocks.last()).expect("a last block");
        assert!(closing["text"].as_str().is_some_and(|text| text.contains(uri)), "{closing}");
        let contents = read(&server, uri).expect("it is read");
        assert!(contents[0]["text"] == whole(last).as_str() && contents[0]["uri"] == uri, "{field}");
        assert_eq!(contents[1], Value::Null);
    }

    // For programs too.
    let uri = long["structuredContent"]["stdout_resource"].as_str().expect("it says where");
    let path = uri.replace("ringfence://", "/v1/");
    let (status, body) = server.http(&format!("GET {path}"), &format!("Host: {}\r\n", server.address), "");
    assert!(status == 200 && body == whole(100_000), "{status}");
}

#[test]
fn even_that_is_bounded() {
    let server = Server::start(&[], &[]);
    let flood = run(&server, &Value::Null, "head -c 20000000 /dev/zero | tr '\\0' x");
    let session = &flood["structuredContent"]["session_id"];
    let first = flood["structuredContent"]["stdout_resource"].as_str().expect("it says where");
    let contents = read(&server, first).expect("it is read");
    assert_eq!(contents[0]["text"].as_str().map(str::len), Some(8 << 20));
    assert_eq!(contents[1]["text"], format!("{} more bytes were not stored", 20_000_000 - (8 << 20)));

    let odd = run(&server, session, "head -c 200000 /dev/zero | tr '\\0' '\\377'");
    let contents = read(&server, odd["structuredContent"]["stdout_resource"].as_str().expect("it says where"));
    assert!(contents.expect("it is read")[0]["blob"].as_str().is_some_and(|blob| blob.starts_with("////")));

    for _ in 0..3 {
        run(&server, session, "seq 1 100000");
    }
    let gone = read(&server, first).expect_err("the oldest goes first");
    assert!(gone["message"].as_str().is_some_and(|text| text.contains("not kept")), "{gone}");
    let id = session.as_str().expect("an id");
    let unknown = read(&server, &first.replace(id, "session-0")).expect_err("it never was");
    assert_eq!(unknown["data"]["error_code"], "SESSION_NOT_FOUND");
    server.call("stop_session", &json!({"session_id": session}));
    let stopped = read(&server, first).expect_err("it is gone with its session");
    assert_eq!(
        stopped["message"].as_str().map(|text| text.replace(id, "session-0")).as_deref(),
        unknown["message"].as_str()
    );
}
