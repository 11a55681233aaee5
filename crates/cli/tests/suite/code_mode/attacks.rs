//! Code that requests more than it was granted: the request is refused, audited, and has no effect.

use super::endpoint::Endpoint;
use ringfence_testkit::wait_until;

/// Writes frames directly to the kernel socket, without the helper functions.
const RAW_FRAMES: &str = "\
import gc, json, os\n\
kernel = next(value for value in gc.get_objects() if type(value).__name__ == 'Kernel')\n\
def send(**frame):\n\
\x20   body = json.dumps(frame).encode()\n\
\x20   os.write(kernel.channel.fd, len(body).to_bytes(4, 'big') + body)\n\
def call(number, server, cell=None):\n\
\x20   params = {'server': server, 'tool': 'record', 'arguments': {'value': 'forged'}}\n\
\x20   send(type='call', id=cell or kernel.cell_id, call=number, method='tools/call', params=params)\n";

#[test]
fn server_not_granted_cannot_be_called() {
    let endpoint = Endpoint::start();
    let result = endpoint.run_with(
        "import mcp.runtime as runtime\n\
         for server in ('more', 'unknown'):\n\
         \x20   try:\n\
         \x20       await runtime.call_tool(server, 'record', {'value': 'x'})\n\
         \x20   except runtime.MCPError as error:\n\
         \x20       print(error.kind)",
        &["tools"],
    );
    assert_eq!(result.stdout(), "refused\nnot_found", "{result:?}");
    endpoint.assert_refused(&["policy", "server `more` is not loaded in this session"]);
    let result = endpoint.run_with("(await mcp_more.report())['recorded']", &["more"]);
    assert_eq!(result.text(), "[]", "{result:?}");
}

#[test]
fn forged_and_replayed_requests_have_no_effect() {
    let endpoint = Endpoint::start();
    endpoint.run_with("await mcp_tools.echo(message='')", &["tools"]);
    // Requests of a kernel are handled in order: the response to the last call, whose number is above all forged ones,
    // shows that the host has handled the others.
    let result = endpoint.run(&format!(
        "{RAW_FRAMES}\
         call(1000, 'more')\n\
         call(1001, 'tools', cell=kernel.cell_id + 7)\n\
         call(5, 'tools')\n\
         send(type='call', id=kernel.cell_id, call=1002, method='store/drop', params={{}})\n\
         send(type='call', id=kernel.cell_id, call=-1, method='tools/call')\n\
         send(type='answer', call=1, result=1)\n\
         send(type='cancel', id=kernel.cell_id, call=10**6)\n\
         bridge_calls = next(value for value in gc.get_objects() if type(value).__name__ == 'Calls')\n\
         bridge_calls.last_number = 2000\n\
         print(await mcp_tools.echo(message='done'))"
    ));
    assert_eq!(result.stdout(), "done", "{result:?}");
    // A fresh session queries the servers: its call numbers are independent of the forged ones.
    let code = "print((await mcp_tools.report())['recorded'], (await mcp_more.report())['recorded'])";
    let arguments = serde_json::json!({"code": code, "servers": ["tools", "more"]});
    let response = endpoint.server.call("execute_code", &arguments);
    assert_eq!(response["result"]["structuredContent"]["stdout"], "[] []\n", "{response}");
    endpoint.assert_refused(&[
        "is not loaded in this session",
        "a cell that is not running",
        "used again",
        "unknown method of the host",
    ]);
}

#[test]
fn request_flood_is_bounded_and_other_sessions_work() {
    let endpoint = Endpoint::start();
    endpoint.run_with("1", &["tools"]);
    let before = endpoint.server.peak_bytes();
    let flood = format!(
        "{RAW_FRAMES}\
         for number in range(10, 20_000):\n\
         \x20   params = {{'server': 'tools', 'tool': 'wait', 'arguments': {{'seconds': 30}}}}\n\
         \x20   send(type='call', id=kernel.cell_id, call=number, method='tools/call', params=params)"
    );
    let result = std::thread::scope(|scope| {
        let flood_call = scope.spawn(|| endpoint.run_for(&serde_json::json!({"code": flood, "timeout": 10})));
        for _ in 0..20 {
            let other = endpoint.server.call("execute_code", &serde_json::json!({"code": "6 * 7"}));
            assert_eq!(other["result"]["structuredContent"]["result"], "42", "{other}");
            let id = &other["result"]["structuredContent"]["session_id"];
            endpoint.server.call("stop_session", &serde_json::json!({"session_id": id}));
        }
        flood_call.join().expect("flooding call ends")
    });
    let growth = endpoint.server.peak_bytes() - before;
    assert!(growth < 64 << 20, "{growth}");
    // However the flooding code ended, its caller has a working session, and the server has free call slots.
    assert!(result.0.get("result").is_some(), "{result:?}");
    let result = endpoint.run_with("await mcp_tools.echo(message='works')", &["tools"]);
    assert!(result.text().contains("'works'"), "{result:?}");
}

#[test]
fn code_with_many_open_calls_can_be_interrupted() {
    let endpoint = Endpoint::start();
    endpoint.run_with("import asyncio; value = 'preserved'", &["tools"]);
    let code = "await asyncio.gather(*[mcp_tools.wait(seconds=60) for _ in range(2000)])";
    let result = endpoint.run_for(&serde_json::json!({"code": code, "timeout": 3}));
    assert!(result.text().contains("time limit") && !result.text().contains("killed"), "{result:?}");
    assert_eq!(endpoint.run("print(value)").stdout(), "preserved");
}

#[test]
fn session_with_servers_ends_if_client_disconnects_before_response() {
    let endpoint = Endpoint::start();
    let arguments = serde_json::json!({"code": "import time; time.sleep(30)", "servers": ["tools"]});
    let params = serde_json::json!({"name": "execute_code", "arguments": arguments});
    let call = serde_json::json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let session_count = || {
        let response = endpoint.server.call("get_sessions", &serde_json::json!({}));
        response["result"]["structuredContent"]["sessions"].as_array().map_or(0, Vec::len)
    };
    let connection = endpoint.server.send("POST /mcp", &call.to_string());
    // The other session is the default session of the endpoint.
    wait_until("the session is not created", || session_count() == 2);
    drop(connection);
    wait_until("the session does not end", || session_count() == 1);
}

#[test]
fn tool_denied_by_profile_cannot_be_called_from_code() {
    let endpoint =
        Endpoint::with("[profiles.narrow]\nmode = \"code\"\nservers = [\"tools\"]\ndeny = [\"record\"]\n", &[]);
    let code = "import mcp.runtime as runtime\n\
                for server, tool in (('tools', 'record'), ('more', 'echo')):\n\
                \x20   try:\n\
                \x20       await runtime.call_tool(server, tool, {'value': 'x', 'message': 'x'})\n\
                \x20   except runtime.MCPError as error:\n\
                \x20       print(error.kind)\n\
                print(await mcp_tools.echo(message='allowed'), [hit['tool'] for hit in runtime.search_tool_docs_sync('remember a value')][:1])";
    let call = serde_json::json!({"name": "run_python", "arguments": {"code": code}});
    let response = endpoint.at("narrow", "tools/call", &call);
    let stdout = response["result"]["structuredContent"]["stdout"].as_str().unwrap_or_default();
    assert!(stdout.starts_with("not_found\nnot_found\nallowed"), "{response}");
    assert!(!stdout.contains("'record'"), "{response}");
}
