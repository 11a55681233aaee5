//! Hosted servers within a scope: used only where it says so, and bound to its roots.

use std::fs;

use ringfence_testkit::{User, fixture_path};
use serde_json::{Value, json};

use super::desk::{Desk, is_denied, rest, text, tools};

fn entry(program: &str, more: &str) -> String {
    format!("[servers.tools]\ncommand = \"python3\"\nargs = [{program:?}]\n{more}")
}

/// A desk whose project is a server.
fn desk_with_server() -> (Desk, String) {
    let desk = Desk::of(User::Root);
    let program = desk.path("root/project/code_server.py");
    fs::copy(fixture_path("code_server.py"), &program).expect("it is copied");
    let program = text(&program);
    (desk, program)
}

#[test]
fn without_the_capability_nothing_of_servers_is_there() {
    let (desk, program) = desk_with_server();
    let config = desk.config(&entry(&program, "[profiles.bound]\nmode = \"code\"\nservers = [\"tools\"]\n"));
    let server = desk.serve(&json!({"capabilities": ["code"]}), &["--config", &config]);
    assert_eq!(tools(&server), ["execute_code", "run_python"]);
    for call in
        [server.call("tools__echo", &json!({"message": "x"})), server.call("search_tools", &json!({"query": "echo"}))]
    {
        assert!(is_denied(&call), "{call}");
    }
    for tool in ["execute_code", "run_python"] {
        let answer = server.call(tool, &json!({"code": "1", "servers": ["tools"]}));
        assert!(is_denied(&answer), "{answer}");
    }
    let ask = "import mcp.runtime as runtime\n\
               for ask in (lambda: runtime.call_tool_sync('tools', 'echo', {'message': 'heard'}), \
               lambda: runtime.search_tool_docs_sync('echo'), \
               lambda: runtime.save_memory('a', 1)):\n\
               \x20   try:\n\
               \x20       print('answered', ask())\n\
               \x20   except Exception as error:\n\
               \x20       print('refused', error)";
    let ran = server.call("run_python", &json!({"code": ask}));
    let ran = ran["result"]["structuredContent"]["stdout"].as_str().unwrap_or_else(|| panic!("{ran}"));
    // Each by the policy, and not because nothing is there.
    let refusals = ["servers", "servers", "memory"].map(|capability| {
        format!(
            "refused the scope of this endpoint does not allow this action: it lacks `{capability}`; continue without it, \
             or ask the person who starts the run to add the capability to its scope"
        )
    });
    assert_eq!(ran.lines().collect::<Vec<_>>(), refusals, "{ran}");
    assert!(!ran.contains("answered") && !ran.contains("heard"), "{ran}");
    let bound = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "run_python", "arguments": {"code": "await mcp_tools.echo(message='heard')"}}});
    let (_, answer) = rest(&server, "POST /mcp/bound", &bound);
    let said = answer["result"]["content"][0]["text"].as_str().unwrap_or_default();
    assert!(said.contains("NameError: name 'mcp_tools' is not defined"), "{answer}");
}

#[test]
fn a_server_is_shown_only_what_lies_in_the_roots() {
    let (desk, program) = desk_with_server();
    let config = desk.config(&entry(&program, ""));
    let server = desk.serve(&json!({}), &["--config", &config]);
    let answer = server.call("tools__echo", &json!({"message": "heard"}));
    assert_eq!(answer["result"]["content"][0]["text"], "heard", "{answer}");
    drop(server);
    for (scope, more, reason) in [
        (json!({"allowed_roots": [desk.path("root/other")]}), "", "the scope does not allow"),
        (json!({"allowed_roots": []}), "", "the scope does not allow"),
        (json!({}), "sandbox = false\n", "without a sandbox it cannot be confined"),
    ] {
        let config = desk.config(&entry(&program, more));
        let server = desk.serve(&scope, &["--config", &config]);
        let answer = server.call("tools__echo", &json!({"message": "heard"}));
        assert!(answer["error"]["message"].as_str().is_some_and(|said| said.contains(reason)), "{answer}");
    }
}

#[test]
fn a_parallel_workers_server_writes_only_in_its_own_directory() {
    let (desk, program) = desk_with_server();
    let program_text = fs::read_to_string(&program).expect("it is there");
    // It says at its start whether it could write where it lies.
    fs::write(&program, format!("open(__file__ + '.wrote', 'w').close()\n{program_text}")).expect("it is written");
    let config = desk.config(&entry(&program, "[servers.tools.box]\nhost_path_mode = \"rw\"\n"));
    let worker = |own: &str| json!({"parallel_worker": true, "worker_artifact_dir": desk.path(own)});
    let call = |own: &str| {
        let server = desk.serve(&worker(own), &["--config", &config]);
        server.call("tools__echo", &json!({"message": "heard"}))
    };
    let elsewhere = call("root/other");
    assert!(elsewhere["error"].is_object(), "it cannot write, and ends: {elsewhere}");
    assert!(!desk.path("root/project/code_server.py.wrote").exists());
    let own = call("root/project");
    assert_eq!(own["result"]["content"][0]["text"], "heard", "{own}");
    assert!(desk.path("root/project/code_server.py.wrote").exists());
}

#[test]
fn a_profile_of_the_scope_is_the_only_one() {
    let (desk, program) = desk_with_server();
    let profiles = "[profiles.few]\nservers = []\n[profiles.all]\n";
    let config = desk.config(&entry(&program, profiles));
    let server = desk.serve(&json!({"capability_profile": "few"}), &["--config", &config]);
    assert!(!tools(&server).iter().any(|tool| tool.starts_with("tools__")));
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    assert_eq!(rest(&server, "POST /mcp/few", &list).0, 200);
    assert_eq!(rest(&server, "POST /mcp/all", &list).0, 404);
    assert_eq!(rest(&server, "POST /mcp/code", &list).0, 404);
    assert_eq!(rest(&server, "GET /v1/servers", &Value::Null).1["servers"], json!([]));
    assert_eq!(rest(&server, "GET /v1/servers/tools", &Value::Null).0, 404);
}

#[test]
fn what_a_profile_of_the_scope_hides_is_not_told_of() {
    let (desk, program) = desk_with_server();
    let config = desk.config(&entry(&program, "[profiles.few]\nallow = [\"execute_code\", \"tools__echo\"]\n"));
    let server = desk.serve(&json!({"capability_profile": "few"}), &["--config", &config]);
    let answer = server.call("tools__echo", &json!({"message": "heard"}));
    assert_eq!(answer["result"]["content"][0]["text"], "heard", "{answer}");
    let names = |of: &Value| -> Vec<String> {
        let tools = of["tools"].as_array().unwrap_or_else(|| panic!("no tools: {of}")).iter();
        tools.filter_map(|tool| tool["name"].as_str()).map(str::to_owned).collect()
    };
    let listed = &rest(&server, "GET /v1/servers", &Value::Null).1["servers"][0];
    let shown = &rest(&server, "GET /v1/servers/tools", &Value::Null).1;
    for told in [listed, shown, &rest(&server, "GET /v1/servers/tools/tools", &Value::Null).1] {
        assert_eq!(names(told), ["echo"], "{told}");
    }
    assert_eq!((&listed["tool_count"], &shown["tool_count"]), (&json!(1), &json!(1)));
}
