//! Hosted servers within a scope: they need the capability, and are limited to the allowed roots.

use std::fs;

use ringfence_testkit::{User, fixture_path};
use serde_json::{Value, json};

use super::fixture::{Fixture, is_denied, rest, text, tools};

fn entry(program: &str, more: &str) -> String {
    format!("[servers.tools]\ncommand = \"python3\"\nargs = [{program:?}]\n{more}")
}

/// Returns a fixture with a server in its project, and the path of the server.
fn fixture_with_server() -> (Fixture, String) {
    let fixture = Fixture::new(User::Root);
    let program = fixture.path("root/project/code_server.py");
    fs::copy(fixture_path("code_server.py"), &program).expect("fixture is copied");
    let program = text(&program);
    (fixture, program)
}

#[test]
fn servers_are_hidden_and_refused_without_the_servers_capability() {
    let (fixture, program) = fixture_with_server();
    let config = fixture.config(&entry(&program, "[profiles.bound]\nmode = \"code\"\nservers = [\"tools\"]\n"));
    let server = fixture.serve(&json!({"capabilities": ["code"]}), &["--config", &config]);
    assert_eq!(tools(&server), ["execute_code", "run_python"]);
    for call in
        [server.call("tools__echo", &json!({"message": "x"})), server.call("search_tools", &json!({"query": "echo"}))]
    {
        assert!(is_denied(&call), "{call}");
    }
    for tool in ["execute_code", "run_python"] {
        let response = server.call(tool, &json!({"code": "1", "servers": ["tools"]}));
        assert!(is_denied(&response), "{response}");
    }
    let calls = "import mcp.runtime as runtime\n\
               for call in (lambda: runtime.call_tool_sync('tools', 'echo', {'message': 'hello'}), \
               lambda: runtime.search_tool_docs_sync('echo'), \
               lambda: runtime.save_memory('a', 1)):\n\
               \x20   try:\n\
               \x20       print('succeeded', call())\n\
               \x20   except Exception as error:\n\
               \x20       print('refused', error)";
    let result = server.call("run_python", &json!({"code": calls}));
    let stdout = result["result"]["structuredContent"]["stdout"].as_str().unwrap_or_else(|| panic!("{result}"));
    // The policy refuses each call; a missing server would cause another error.
    let refusals = ["servers", "servers", "memory"].map(|capability| {
        format!(
            "refused the scope of this endpoint does not allow this action: it lacks `{capability}`; continue without it, \
             or ask the person who starts the run to add the capability to its scope"
        )
    });
    assert_eq!(stdout.lines().collect::<Vec<_>>(), refusals, "{stdout}");
    assert!(!stdout.contains("succeeded") && !stdout.contains("hello"), "{stdout}");
    let bound = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "run_python", "arguments": {"code": "await mcp_tools.echo(message='hello')"}}});
    let (_, response) = rest(&server, "POST /mcp/bound", &bound);
    let output = response["result"]["content"][0]["text"].as_str().unwrap_or_default();
    assert!(output.contains("NameError: name 'mcp_tools' is not defined"), "{response}");
}

#[test]
fn hosted_server_needs_a_sandbox_and_files_in_the_allowed_roots() {
    let (fixture, program) = fixture_with_server();
    let config = fixture.config(&entry(&program, ""));
    let server = fixture.serve(&json!({}), &["--config", &config]);
    let response = server.call("tools__echo", &json!({"message": "hello"}));
    assert_eq!(response["result"]["content"][0]["text"], "hello", "{response}");
    drop(server);
    for (scope, more, reason) in [
        (json!({"allowed_roots": [fixture.path("root/other")]}), "", "the scope does not allow"),
        (json!({"allowed_roots": []}), "", "the scope does not allow"),
        (json!({}), "sandbox = false\n", "without a sandbox it cannot be confined to the allowed roots"),
    ] {
        let config = fixture.config(&entry(&program, more));
        let server = fixture.serve(&scope, &["--config", &config]);
        let response = server.call("tools__echo", &json!({"message": "hello"}));
        assert!(response["error"]["message"].as_str().is_some_and(|message| message.contains(reason)), "{response}");
    }
}

#[test]
fn hosted_server_of_a_parallel_worker_writes_only_in_the_artifact_directory() {
    let (fixture, program) = fixture_with_server();
    let code = fs::read_to_string(&program).expect("file exists");
    // At its start, the server writes a file beside its program.
    fs::write(&program, format!("open(__file__ + '.wrote', 'w').close()\n{code}")).expect("file is written");
    let config = fixture.config(&entry(&program, "[servers.tools.box]\nhost_path_mode = \"rw\"\n"));
    let worker = |directory: &str| json!({"parallel_worker": true, "worker_artifact_dir": fixture.path(directory)});
    let call = |directory: &str| {
        let server = fixture.serve(&worker(directory), &["--config", &config]);
        server.call("tools__echo", &json!({"message": "hello"}))
    };
    let outside = call("root/other");
    assert!(outside["error"].is_object(), "the server fails because it cannot write: {outside}");
    assert!(!fixture.path("root/project/code_server.py.wrote").exists());
    let inside = call("root/project");
    assert_eq!(inside["result"]["content"][0]["text"], "hello", "{inside}");
    assert!(fixture.path("root/project/code_server.py.wrote").exists());
}

#[test]
fn profile_of_the_scope_is_the_only_endpoint() {
    let (fixture, program) = fixture_with_server();
    let profiles = "[profiles.few]\nservers = []\n[profiles.all]\n";
    let config = fixture.config(&entry(&program, profiles));
    let server = fixture.serve(&json!({"capability_profile": "few"}), &["--config", &config]);
    assert!(!tools(&server).iter().any(|tool| tool.starts_with("tools__")));
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    assert_eq!(rest(&server, "POST /mcp/few", &list).0, 200);
    assert_eq!(rest(&server, "POST /mcp/all", &list).0, 404);
    assert_eq!(rest(&server, "POST /mcp/code", &list).0, 404);
    assert_eq!(rest(&server, "GET /v1/servers", &Value::Null).1["servers"], json!([]));
    assert_eq!(rest(&server, "GET /v1/servers/tools", &Value::Null).0, 404);
}

#[test]
fn tools_hidden_by_the_profile_of_the_scope_are_not_listed() {
    let (fixture, program) = fixture_with_server();
    let config = fixture.config(&entry(&program, "[profiles.few]\nallow = [\"execute_code\", \"tools__echo\"]\n"));
    let server = fixture.serve(&json!({"capability_profile": "few"}), &["--config", &config]);
    let response = server.call("tools__echo", &json!({"message": "hello"}));
    assert_eq!(response["result"]["content"][0]["text"], "hello", "{response}");
    let names = |info: &Value| -> Vec<String> {
        let tools = info["tools"].as_array().unwrap_or_else(|| panic!("no tools: {info}")).iter();
        tools.filter_map(|tool| tool["name"].as_str()).map(str::to_owned).collect()
    };
    let listed = &rest(&server, "GET /v1/servers", &Value::Null).1["servers"][0];
    let shown = &rest(&server, "GET /v1/servers/tools", &Value::Null).1;
    for info in [listed, shown, &rest(&server, "GET /v1/servers/tools/tools", &Value::Null).1] {
        assert_eq!(names(info), ["echo"], "{info}");
    }
    assert_eq!((&listed["tool_count"], &shown["tool_count"]), (&json!(1), &json!(1)));
}
