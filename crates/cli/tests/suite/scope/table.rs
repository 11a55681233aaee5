//! Every interface, with both versions of the protocol, under scopes that lack a capability: requests that need it are
//! refused and audited, whatever their arguments are, and all other requests succeed.

use std::collections::BTreeSet;
use std::fs;

use ringfence_store::Store;
use ringfence_testkit::{Server, User, fixture_path};
use serde_json::{Value, json};

use super::fixture::{Fixture, is_denied, rest, text, tools};

const ALL: [&str; 7] = ["code", "command", "files.read", "files.write", "sessions", "servers", "memory"];

/// Capabilities, any of which allows a request.
type Needs = &'static [&'static str];

const BUILTIN_TOOLS: [(&str, Needs); 10] = [
    ("execute_code", &["code"]),
    ("execute_command", &["command"]),
    ("get_sessions", &["sessions"]),
    ("stop_session", &["sessions"]),
    ("get_volume_path", &["sessions"]),
    ("read_file", &["files.read"]),
    ("write_file", &["files.write"]),
    ("list_files", &["files.read"]),
    ("run_python", &["code"]),
    ("search_tools", &["servers"]),
];

const REST: [(&str, Needs); 14] = [
    ("GET /v1/sessions", &["sessions"]),
    ("POST /v1/sessions", &["code", "command", "sessions"]),
    ("GET /v1/sessions/none", &["sessions"]),
    ("DELETE /v1/sessions/none", &["sessions"]),
    ("GET /v1/sessions/none/log", &["sessions"]),
    ("POST /v1/sessions/none/exec", &["code", "command"]),
    ("GET /v1/sessions/none/outputs/1", &["code", "command"]),
    ("GET /v1/sessions/none/files", &["files.read"]),
    ("GET /v1/sessions/none/files/x", &["files.read"]),
    ("PUT /v1/sessions/none/files/x", &["files.write"]),
    ("GET /v1/sessions/none/processes", &["command"]),
    ("POST /v1/sessions/none/processes", &["command"]),
    ("GET /v1/servers", &["servers"]),
    ("GET /v1/servers/tools/tools", &["servers"]),
];

#[derive(Clone, Copy, PartialEq)]
enum Era {
    Legacy,
    Modern,
}

/// Returns requests other than those that list. Their arguments are invalid on purpose: a refusal must not reveal that.
fn requests() -> Vec<(&'static str, Value, Needs)> {
    let mut requests: Vec<(&str, Value, Needs)> = Vec::new();
    for (tool, needs) in BUILTIN_TOOLS {
        requests.push(("tools/call", json!({"name": tool, "arguments": {"no": "such"}}), needs));
        requests.push(("tools/call", json!({"name": tool, "arguments": ["none"]}), needs));
    }
    let servers: Needs = &["servers"];
    requests.extend([
        ("tools/call", json!({"name": "tools__echo", "arguments": {"message": "hello"}}), servers),
        ("tools/call", json!({"name": "tools__none", "arguments": {}}), servers),
        ("prompts/get", json!({"name": "none"}), servers),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "none"},
            "argument": {"name": "a", "value": ""}}),
            servers,
        ),
        ("resources/read", json!({"uri": "file:///none"}), servers),
        ("resources/subscribe", json!({"uri": "file:///none"}), servers),
        ("resources/unsubscribe", json!({"uri": "file:///none"}), servers),
        ("resources/read", json!({"uri": "ringfence://sessions/none/outputs/1"}), &["code", "command"]),
        ("resources/read", json!({"uri": "ringfence://sessions/none/displays/1/0"}), &["code", "command"]),
        ("resources/read", json!({"uri": "ringfence://sessions/none/files/workspace/x"}), &["files.read"]),
        ("resources/read", json!({"uri": "resource://ringfence/capabilities"}), &["code"]),
    ]);
    requests
}

fn send(server: &Server, era: Era, method: &str, mut params: Value) -> Value {
    if era == Era::Legacy {
        return server.request(method, &params);
    }
    let name = params.get("name").or_else(|| params.get("uri")).and_then(Value::as_str);
    let name = name.map(|name| format!("Mcp-Name: {name}\r\n")).unwrap_or_default();
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let headers = format!(
        "Host: {}\r\nContent-Type: application/json\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\n{name}",
        server.address
    );
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let (_, body) = server.http("POST /mcp", &headers, &request);
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

/// Sends every request under a scope, checks each response, and returns the number of refusals.
fn try_all(server: &Server, allowed: &BTreeSet<&str>) -> usize {
    let is_allowed = |needs: Needs| needs.iter().any(|need| allowed.contains(need));
    let mut refusals = 0;
    let hosted = tools(server).iter().any(|tool| tool.starts_with("tools__"));
    assert_eq!(hosted, is_allowed(&["servers"]), "{allowed:?}");
    let builtin: Vec<String> = tools(server).into_iter().filter(|tool| !tool.starts_with("tools__")).collect();
    let expected: Vec<&str> =
        BUILTIN_TOOLS.iter().filter(|(_, needs)| is_allowed(needs)).map(|(tool, _)| *tool).collect();
    assert_eq!(builtin, expected, "{allowed:?}");
    for era in [Era::Legacy, Era::Modern] {
        for (method, params, needs) in requests() {
            if era == Era::Modern && method.ends_with("subscribe") {
                continue;
            }
            let response = send(server, era, method, params.clone());
            assert_eq!(is_denied(&response), !is_allowed(needs), "{allowed:?}: {method} {params}: {response}");
            refusals += usize::from(!is_allowed(needs));
            if params["name"] == "tools__echo" && is_allowed(needs) {
                assert_eq!(response["result"]["content"][0]["text"], "hello", "{response}");
            }
        }
    }
    for (request, needs) in REST {
        let (status, response) = rest(server, request, &json!({"no": "such"}));
        assert_eq!(status == 403, !is_allowed(needs), "{allowed:?}: {request}: {status} {response}");
        refusals += usize::from(!is_allowed(needs));
    }
    if is_allowed(&["code"]) {
        let save = "import mcp.runtime as runtime\nruntime.save_memory('key', 'x')\nprint('saved')";
        let response = server.call("run_python", &json!({"code": save})).to_string();
        assert_eq!(
            response.contains("the scope of this endpoint does not allow this action: it lacks `memory`"),
            !is_allowed(&["memory"]),
            "{allowed:?}: {response}"
        );
        assert_eq!(response.contains("\"text\":\"saved"), is_allowed(&["memory"]), "{allowed:?}: {response}");
        refusals += usize::from(!is_allowed(&["memory"]));
    }
    refusals
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_without_their_capability_are_refused_on_every_interface() {
    let scopes = ALL.iter().map(|lacking| ALL.iter().copied().filter(|capability| capability != lacking).collect());
    let scopes: Vec<BTreeSet<&str>> = scopes.chain([BTreeSet::new(), ALL.into()]).collect();
    for allowed in scopes {
        let fixture = Fixture::new(User::Root);
        let program = fixture.path("root/project/code_server.py");
        fs::copy(fixture_path("code_server.py"), &program).expect("fixture is copied");
        let config =
            fixture.config(&format!("[servers.tools]\ncommand = \"python3\"\nargs = [{:?}]\n", text(&program)));
        let server = fixture.serve(&json!({"capabilities": allowed}), &["--config", &config]);
        let refused = try_all(&server, &allowed);
        drop(server);
        let store = Store::open(fixture.state.path()).expect("store opens");
        let rows = store.recent_audit(None, 1000).await.expect("rows are read");
        let audited = rows.iter().filter(|row| row.kind == "refused" && row.outcome == "policy").count();
        assert_eq!(audited, refused, "{allowed:?}: the audit contains every refusal");
        store.close().await;
    }
}
