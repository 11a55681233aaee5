//! Questions to the user of a client about hosts that no rule allows.

use ringfence_testkit::Server;
use serde_json::{Value, json};

use super::sessions::network_lines;

/// Connects to a host that no rule allows, through the proxy.
const CONNECT: &str = "import http.client
connection = http.client.HTTPConnection('127.0.0.1', 3128)
connection.request('GET', 'http://example.test/')
print(connection.getresponse().status)
";

/// Calls a tool as a client of the modern era that can show forms.
fn call(server: &Server, mut params: Value) -> Value {
    params["name"] = "execute_code".into();
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    });
    let headers = format!(
        "Host: {}\r\nContent-Type: application/json\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\n\
         Mcp-Name: execute_code\r\n",
        server.address
    );
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
    let (_, body) = server.http("POST /mcp", &headers, &request);
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

#[test]
fn modern_client_is_asked_and_continues_the_call() {
    let server = Server::start(&[], &[]);
    let arguments = json!({"code": CONNECT, "timeout": 60});
    let first = call(&server, json!({"arguments": arguments}));
    assert_eq!(first["result"]["resultType"], "input_required", "{first}");
    let question = &first["result"]["inputRequests"]["network"];
    assert_eq!(question["method"], "elicitation/create", "{first}");
    assert_eq!(question["params"]["message"], "Allow example.test for this session?", "{first}");
    let answered = json!({
        "arguments": arguments,
        "inputResponses": {"network": {"action": "accept", "content": {"decision": "no"}}},
        "requestState": first["result"]["requestState"],
    });
    let second = call(&server, answered.clone());
    let result = &second["result"]["structuredContent"];
    assert_eq!(result["stdout"], "403\n", "{second}");
    let lines = network_lines(result);
    assert!(lines.len() == 1 && lines[0].starts_with("network: blocked example.test:80"), "{lines:?}");
    let replayed = call(&server, answered);
    assert_eq!(replayed["error"]["code"], -32602, "the call has ended: {replayed}");
}

#[test]
fn nobody_is_asked_if_the_operator_has_disabled_questions() {
    let server = Server::start(&[], &[("RINGFENCE_SESSIONS_ASK", "false")]);
    let response = call(&server, json!({"arguments": {"code": CONNECT}}));
    let result = &response["result"]["structuredContent"];
    assert_eq!(result["stdout"], "403\n", "{response}");
    assert_eq!(network_lines(result).len(), 1, "{response}");
}

#[test]
fn arguments_of_a_tool_cannot_answer_a_question() {
    let server = Server::start(&[], &[]);
    let arguments = json!({
        "code": CONNECT,
        "inputResponses": {"network": {"action": "accept", "content": {"decision": "always"}}},
    });
    let response = call(&server, json!({"arguments": arguments}));
    let text = response["result"]["content"][0]["text"].as_str().unwrap_or_default();
    assert!(response["result"]["isError"] == true && text.contains("inputResponses"), "{response}");
}
