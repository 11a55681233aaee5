//! Code that calls tools of MCP servers, through `run_python` and through `execute_code` with `servers`.

mod attacks;
mod compatibility;
mod endpoint;
mod keeping;
mod languages;
mod large;
mod real_servers;
mod unfinished;

use endpoint::Endpoint;
use serde_json::{Value, json};

#[test]
fn tools_are_functions_with_plain_results() {
    let endpoint = Endpoint::start();
    let result = endpoint.run_with(
        "r = await mcp_tools.add_numbers(a=1, b=2)\n\
         print(r, await mcp_tools.list_planets(), repr(await mcp_tools.echo(message='plain text')))\n\
         image = await mcp_tools.draw()\n\
         print(type(image).__mro__[1].__name__, image.mime_type, bytes(image[:4]))\n\
         from mcp.servers import tools\n\
         import mcp.runtime as runtime\n\
         print(await tools.echo(message='1'), await mcp_servers['tools'].echo(message='2'), LOADED_MCP_SERVERS)\n\
         print((await runtime.call_tool('tools', 'echo', {'message': 'x'}, raw=True))['content'])",
        &["tools"],
    );
    let expected = "{'sum': 3} {'planets': ['Mercury', 'Venus']} 'plain text'\n\
                    bytes image/png b'\\x89PNG'\n\
                    1 2 ('tools',)\n\
                    [{'type': 'text', 'text': 'x'}]";
    assert_eq!(result.stdout(), expected, "{result:?}");
}

#[test]
fn tool_schema_becomes_signature_and_docstring() {
    let endpoint = Endpoint::start();
    let result = endpoint.run_with(
        "import inspect\n\
         print(inspect.signature(mcp_tools.add_numbers), '|', mcp_tools.wait.__doc__.splitlines()[0])\n\
         print(await mcp_tools.class_(), await mcp_tools.get_thing(), await mcp_tools.get_thing_2())\n\
         help(mcp_tools.record)",
        &["tools"],
    );
    let stdout = result.stdout();
    assert!(stdout.starts_with("(*, a: "), "{stdout}");
    assert!(stdout.contains("| Wait a while, and then give back a label.\nclass get-thing get_thing\n"), "{stdout}");
    assert!(stdout.contains("Remember a value, as an effect."), "{stdout}");
}

#[test]
fn tool_errors_can_be_caught_and_uncaught_errors_fail_the_call() {
    let endpoint = Endpoint::start();
    let result = endpoint.run_with(
        "from mcp.runtime import MCPError\n\
         for call in (mcp_tools.fail(message='no luck'), mcp_tools.refuse()):\n\
         \x20   try:\n\
         \x20       await call\n\
         \x20   except MCPError as error:\n\
         \x20       print(error.kind, str(error))\n\
         x = 7",
        &["tools"],
    );
    let stdout = result.stdout();
    assert!(stdout.contains("no luck") && stdout.contains("upstream out of paper"), "{stdout}");
    let uncaught = endpoint.run("await mcp_tools.fail(message='no luck')");
    assert_eq!((uncaught.is_error(), uncaught.status()), (true, "error"), "{uncaught:?}");
    let text = uncaught.text();
    assert!(text.starts_with("status: error\n") && text.contains("no luck") && text.contains("<cell 3>"), "{text}");
    assert!(!text.contains("mcp_bridge") && !text.contains("kernel.py"), "{text}");
    assert_eq!(endpoint.run("x").text(), "7");
}

#[test]
fn servers_of_later_calls_are_added_and_remain_loaded() {
    let endpoint = Endpoint::start();
    let missing = endpoint.run("mcp_tools");
    assert!(missing.is_error() && missing.text().contains("NameError"), "{missing:?}");
    assert_eq!(endpoint.run_with("await mcp_tools.echo(message='named')", &["tools"]).text(), "'named'");
    assert_eq!(endpoint.run("await mcp_tools.echo(message='still loaded')").text(), "'still loaded'");
    let both = endpoint.run_with("await mcp_more.echo(message='m'), await mcp_tools.echo(message='t')", &["more"]);
    assert_eq!(both.text(), "('m', 't')");
    let unknown = endpoint.run_with("1", &["absent"]);
    assert_eq!((unknown.status(), unknown.is_error()), ("validation_error", true), "{unknown:?}");
    assert!(unknown.text().contains("absent") && unknown.text().contains("tools"), "{unknown:?}");
    for arguments in [json!({}), json!({"code": " "}), json!({"code": "1", "servers": 5}), json!({"code": "1", "x": 1})]
    {
        let refused = endpoint.run_for(&arguments);
        assert_eq!((refused.status(), refused.is_error()), ("validation_error", true), "{refused:?}");
    }
}

#[test]
fn gathered_calls_run_in_parallel_up_to_the_limit() {
    let endpoint = Endpoint::start();
    let result = endpoint.run_with(
        "import asyncio\n\
         labels = await asyncio.gather(*(mcp_tools.wait(seconds=1, label=str(n)) for n in range(5)))\n\
         print(labels, (await mcp_tools.report())['peak'])",
        &["tools"],
    );
    assert_eq!(result.stdout(), "['0', '1', '2', '3', '4'] 5", "{result:?}");
    let result = endpoint.run(
        "labels = await asyncio.gather(*(mcp_tools.wait(seconds=0.002, label=str(n)) for n in range(1000)))\n\
         report = await mcp_tools.report()\n\
         print(labels == [str(n) for n in range(1000)], report['peak'], report['started'])",
    );
    assert_eq!(result.stdout(), "True 8 1007", "{result:?}");
}

#[test]
fn call_timeout_begins_when_the_call_starts() {
    let endpoint = Endpoint::start();
    // Twelve calls with eight slots: the last four wait 1.2 s for a slot, and that time must not count for their timeout.
    let result = endpoint.run_with(
        "import asyncio, mcp.runtime as runtime\n\
         call = lambda n: runtime.call_tool('tools', 'wait', {'seconds': 1.2, 'label': str(n)}, timeout=2)\n\
         print(len(await asyncio.gather(*(call(n) for n in range(12)))))\n\
         try:\n\
         \x20   await runtime.call_tool('tools', 'wait', {'seconds': 20}, timeout=0.5)\n\
         except runtime.MCPError as error:\n\
         \x20   print(error.kind, error.may_have_run)",
        &["tools"],
    );
    assert_eq!(result.stdout(), "12\ntimeout True", "{result:?}");
}

#[test]
fn tools_can_be_searched_without_loading_servers() {
    let endpoint = Endpoint::start();
    let result = endpoint.run(
        "import mcp.runtime as runtime\n\
         found = await runtime.search_tool_docs('add two numbers', limit=2)\n\
         print([(hit['server'], hit['tool']) for hit in found])\n\
         print(runtime.search_tool_docs_sync('plnets')[0]['tool'], runtime.list_servers_sync())\n\
         print([tool['name'] for tool in runtime.list_tools_sync('tools')][:2])\n\
         print(runtime.query_tool_docs_sync('tools', 'record', detail='full'))",
    );
    let stdout = result.stdout();
    assert!(stdout.starts_with("[('more', 'add_numbers'), ('tools', 'add_numbers')]\nlist_planets "), "{stdout}");
    assert!(stdout.contains("['echo', 'add_numbers']") && stdout.contains("which"), "{stdout}");
    let found = endpoint.server.call("search_tools", &json!({"query": "picture", "limit": 1}));
    let tools = found["result"]["structuredContent"]["tools"].as_array().expect("list of tools");
    assert_eq!((tools.len(), &tools[0]["tool"]), (1, &json!("draw")), "{found}");
}

#[test]
fn code_profile_offers_only_two_tools() {
    let endpoint = Endpoint::start();
    let names = |list: Value| -> Vec<String> {
        let tools = list["result"]["tools"].as_array().expect("list of tools").clone();
        tools.iter().filter_map(|tool| tool["name"].as_str().map(str::to_owned)).collect()
    };
    assert_eq!(names(endpoint.at("code", "tools/list", &json!({}))), ["run_python", "search_tools"]);
    let direct = names(endpoint.server.request("tools/list", &json!({})));
    assert!(direct.contains(&"run_python".to_owned()) && direct.contains(&"tools__echo".to_owned()), "{direct:?}");
    let initialized = endpoint.at(
        "code",
        "initialize",
        &json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
        }),
    );
    let instructions = initialized["result"]["instructions"].as_str().unwrap_or_default();
    assert!(instructions.ends_with("Servers: more, tools."), "{initialized}");
    let hidden = json!({"name": "tools__echo", "arguments": {"message": "x"}});
    assert_eq!(endpoint.at("code", "tools/call", &hidden)["error"]["code"], -32602);
    let read = endpoint.at("code", "resources/read", &json!({"uri": "resource://ringfence/capabilities"}));
    let contents = &read["result"]["contents"][0];
    assert_eq!(contents["mimeType"], "text/markdown", "{read}");
    assert!(contents["text"].as_str().is_some_and(|text| text.contains("mcp_")), "{read}");
}
