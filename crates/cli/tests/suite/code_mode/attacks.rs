//! Code that asks for more than it was given: refused, told in the audit, and harmless.

use super::endpoint::Endpoint;
use ringfence_testkit::wait_until;

/// Speaks on the kernel's own socket, around the helpers.
const BY_HAND: &str = "\
import gc, json, os, time\n\
kernel = next(it for it in gc.get_objects() if type(it).__name__ == 'Kernel')\n\
def say(**frame):\n\
\x20   body = json.dumps(frame).encode()\n\
\x20   os.write(kernel.channel.fd, len(body).to_bytes(4, 'big') + body)\n\
def call(number, server, cell=None):\n\
\x20   params = {'server': server, 'tool': 'record', 'arguments': {'value': 'forged'}}\n\
\x20   say(type='call', id=cell or kernel.cell_id, call=number, method='tools/call', params=params)\n";

#[test]
fn a_server_that_was_not_granted_is_not_reached() {
    let endpoint = Endpoint::start();
    let ran = endpoint.run_with(
        "import mcp.runtime as runtime\n\
         for server in ('more', 'nowhere'):\n\
         \x20   try:\n\
         \x20       await runtime.call_tool(server, 'record', {'value': 'x'})\n\
         \x20   except runtime.MCPError as error:\n\
         \x20       print(error.kind)",
        &["tools"],
    );
    assert_eq!(ran.stdout(), "refused\nnot_found", "{ran:?}");
    endpoint.assert_refused(&["policy", "server `more` is not loaded in this session"]);
    let ran = endpoint.run_with("(await mcp_more.report())['recorded']", &["more"]);
    assert_eq!(ran.text(), "[]", "{ran:?}");
}

#[test]
fn forged_and_replayed_requests_do_nothing() {
    let endpoint = Endpoint::start();
    endpoint.run_with("await mcp_tools.echo(message='')", &["tools"]);
    let ran = endpoint.run(&format!(
        "{BY_HAND}\
         call(1000, 'more')\n\
         call(1001, 'tools', cell=kernel.cell_id + 7)\n\
         call(5, 'tools')\n\
         say(type='call', id=kernel.cell_id, call=1002, method='store/drop', params={{}})\n\
         say(type='call', id=kernel.cell_id, call=-1, method='tools/call')\n\
         say(type='answer', call=1, result=1)\n\
         say(type='cancel', id=kernel.cell_id, call=10**6)\n\
         time.sleep(0.5)\n\
         print('done')"
    ));
    assert_eq!(ran.stdout(), "done", "{ran:?}");
    // Asked from another session: whoever has used numbers ahead of its kernel has none left that would be heard.
    let code = "print((await mcp_tools.report())['recorded'], (await mcp_more.report())['recorded'])";
    let other = serde_json::json!({"code": code, "servers": ["tools", "more"]});
    let seen = endpoint.server.call("execute_code", &other);
    assert_eq!(seen["result"]["structuredContent"]["stdout"], "[] []\n", "{seen}");
    endpoint.assert_refused(&[
        "is not loaded in this session",
        "another piece of code",
        "used again",
        "unknown method of the host",
    ]);
}

#[test]
fn a_flood_of_requests_is_bounded_and_others_go_on() {
    let endpoint = Endpoint::start();
    endpoint.run_with("1", &["tools"]);
    let before = endpoint.server.peak_bytes();
    let flood = format!(
        "{BY_HAND}\
         for number in range(10, 20_000):\n\
         \x20   params = {{'server': 'tools', 'tool': 'wait', 'arguments': {{'seconds': 30}}}}\n\
         \x20   say(type='call', id=kernel.cell_id, call=number, method='tools/call', params=params)"
    );
    let ran = std::thread::scope(|scope| {
        let flooded = scope.spawn(|| endpoint.run_for(&serde_json::json!({"code": flood, "timeout": 10})));
        for _ in 0..20 {
            let other = endpoint.server.call("execute_code", &serde_json::json!({"code": "6 * 7"}));
            assert_eq!(other["result"]["structuredContent"]["result"], "42", "{other}");
            let id = &other["result"]["structuredContent"]["session_id"];
            endpoint.server.call("stop_session", &serde_json::json!({"session_id": id}));
        }
        flooded.join().expect("it ends")
    });
    let grown = endpoint.server.peak_bytes() - before;
    assert!(grown < 64 << 20, "{grown}");
    // Whatever became of the code that did it, its caller has a session that works, and the server its places.
    assert!(ran.0.get("result").is_some(), "{ran:?}");
    let ran = endpoint.run_with("await mcp_tools.echo(message='well')", &["tools"]);
    assert!(ran.text().contains("'well'"), "{ran:?}");
}

#[test]
fn code_with_any_number_of_open_calls_can_be_interrupted() {
    let endpoint = Endpoint::start();
    endpoint.run_with("import asyncio; kept = 'kept'", &["tools"]);
    let code = "await asyncio.gather(*[mcp_tools.wait(seconds=60) for _ in range(2000)])";
    let ran = endpoint.run_for(&serde_json::json!({"code": code, "timeout": 3}));
    assert!(ran.text().contains("time limit") && !ran.text().contains("killed"), "{ran:?}");
    assert_eq!(endpoint.run("print(kept)").stdout(), "kept");
}

#[test]
fn a_session_with_servers_of_which_its_caller_was_not_told_ends() {
    let endpoint = Endpoint::start();
    let arguments = serde_json::json!({"code": "import time; time.sleep(30)", "servers": ["tools"]});
    let params = serde_json::json!({"name": "execute_code", "arguments": arguments});
    let call = serde_json::json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let live = || {
        let told = endpoint.server.call("get_sessions", &serde_json::json!({}));
        told["result"]["structuredContent"]["sessions"].as_array().map_or(0, Vec::len)
    };
    let gone = endpoint.server.send("POST /mcp", &call.to_string());
    // Beside the one that the caller has for its code.
    wait_until("there is no session", || live() == 2);
    drop(gone);
    wait_until("the session is left", || live() == 1);
}

#[test]
fn a_tool_that_a_profile_does_not_offer_is_not_reached_from_code_either() {
    let endpoint =
        Endpoint::with("[profiles.narrow]\nmode = \"code\"\nservers = [\"tools\"]\ndeny = [\"record\"]\n", &[]);
    let code = "import mcp.runtime as runtime\n\
                for server, tool in (('tools', 'record'), ('more', 'echo')):\n\
                \x20   try:\n\
                \x20       await runtime.call_tool(server, tool, {'value': 'x', 'message': 'x'})\n\
                \x20   except runtime.MCPError as error:\n\
                \x20       print(error.kind)\n\
                print(await mcp_tools.echo(message='bound'), [hit['tool'] for hit in runtime.search_tool_docs_sync('remember a value')][:1])";
    let call = serde_json::json!({"name": "run_python", "arguments": {"code": code}});
    let answer = endpoint.at("narrow", "tools/call", &call);
    let stdout = answer["result"]["structuredContent"]["stdout"].as_str().unwrap_or_default();
    assert!(stdout.starts_with("not_found\nnot_found\nbound"), "{answer}");
    assert!(!stdout.contains("'record'"), "{answer}");
}
