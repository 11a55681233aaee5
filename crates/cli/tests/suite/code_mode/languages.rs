//! Tool calls from sessions of `execute_code`, in Python and JavaScript.

use serde_json::{Value, json};

use super::endpoint::Endpoint;

fn execute(endpoint: &Endpoint, arguments: &Value) -> Value {
    endpoint.server.call("execute_code", arguments)["result"]["structuredContent"].clone()
}

#[test]
fn sessions_load_servers_by_name() {
    let endpoint = Endpoint::start();
    let created = execute(&endpoint, &json!({"code": "await mcp_tools.echo(message='hi')", "servers": ["tools"]}));
    assert_eq!((&created["result"], &created["session_created"]), (&json!("'hi'"), &json!(true)), "{created}");
    let again = execute(
        &endpoint,
        &json!({"code": "await mcp_tools.echo(message='again')", "session_id": created["session_id"]}),
    );
    assert_eq!(again["result"], "'again'", "{again}");
    let other = execute(&endpoint, &json!({"code": "mcp_tools"}));
    assert_eq!(other["error"]["name"], "NameError", "{other}");
}

#[test]
fn javascript_has_the_same_tools() {
    let endpoint = Endpoint::start();
    let code = "const sums = await Promise.all([1, 2, 3].map((n) => mcp.tools.addNumbers({ a: n, b: n })));\n\
                let caught = '';\n\
                try { await mcp.tools.fail({ message: 'no luck' }) } catch (error) { caught = `${error.name} ${error.message}` }\n\
                const picture = await mcp.tools.draw();\n\
                const found = await mcp.searchTools('remember a value');\n\
                console.log(JSON.stringify([sums, caught, picture.mimeType, found[0].tool, await mcp.tools.class()]));\n\
                (await mcp.tools.makeText({ bytes: 100000 })).length";
    let created = execute(&endpoint, &json!({"code": code, "servers": ["tools"], "template": "node"}));
    let expected = "[[{\"sum\":2},{\"sum\":4},{\"sum\":6}],\"MCPError no luck\",\"image/png\",\"record\",\"class\"]\n";
    assert_eq!((&created["stdout"], &created["result"]), (&json!(expected), &json!("100000")), "{created}");
    let late =
        json!({"code": "await mcp.tools.wait({ seconds: 50 })", "session_id": created["session_id"], "timeout": 1});
    let late = execute(&endpoint, &late);
    assert_eq!(late["status"], "timed_out", "{late}");
    assert_eq!(late["unfinished_calls"]["may_have_run"], json!(["tools.wait"]), "{late}");
    let after = json!({"code": "sums.length + (await mcp.tools.echo({ message: 'x' })).length", "session_id": created["session_id"]});
    assert_eq!(execute(&endpoint, &after)["result"], "4");
}

#[test]
fn javascript_saves_tools_and_memories() {
    let endpoint = Endpoint::start();
    let saved = execute(
        &endpoint,
        &json!({
            "code": "function twice(n) { return 2 * n }\nawait mcp.saveTool(twice);\nawait mcp.memory.save('k', {a: 1});",
            "template": "node",
        }),
    );
    assert_eq!(saved["status"], "ok", "{saved}");
    let used = execute(
        &endpoint,
        &json!({
            "code": "[await twice(4), (await mcp.memory.load('k')).a]", "template": "node",
        }),
    );
    assert_eq!(used["result"], "[ 8, 1 ]", "{used}");
}
