//! State that survives its session or the server: saved tools and memories, which belong to one principal, and named
//! default sessions.

use ringfence_core::Language;
use ringfence_testkit::Server;
use serde_json::json;

use super::endpoint::{Endpoint, RunResult};

const SAVE: &str = "import math\n\
                    def area(radius):\n\
                    \x20   \"The area of a circle.\"\n\
                    \x20   return round(math.pi * radius ** 2, 2)\n";

#[test]
fn saved_tool_is_versioned_and_available_in_later_sessions() {
    let endpoint = Endpoint::start();
    let saved = endpoint.run(&format!("{SAVE}save_tool(area)"));
    assert!(!saved.is_error(), "{saved:?}");
    endpoint.run("import mcp.runtime as runtime\ndef area(radius):\n    return radius\nruntime.save_tool(area)");
    let in_new_session = |code: &str| endpoint.server.call("execute_code", &json!({"code": code}));
    let used = in_new_session("area(7)");
    assert_eq!(used["result"]["structuredContent"]["result"], "7", "{used}");
    let listed = in_new_session(
        "import mcp.runtime as runtime\n\
         [(tool['name'], tool['version']) for tool in runtime.saved_tools()]",
    );
    assert_eq!(listed["result"]["structuredContent"]["result"], "[('area', 2)]", "{listed}");
    let endpoint = endpoint.kill_and_restart();
    let used = endpoint.server.call("execute_code", &json!({"code": "area(8)"}));
    assert_eq!(used["result"]["structuredContent"]["result"], "8", "{used}");
    endpoint.run("import mcp.runtime as runtime\nruntime.delete_tool('area')");
    let deleted = endpoint.server.call("execute_code", &json!({"code": "area(8)"}));
    assert!(deleted["result"]["structuredContent"]["error"]["name"] == "NameError", "{deleted}");
}

#[test]
fn broken_saved_tool_fails_only_when_used() {
    let endpoint = Endpoint::start();
    // Writes to the store directly, since the helper functions refuse invalid code.
    endpoint.store(async |store| {
        let result = store.save_tool("local", Language::Python, "unparsable", "def unparsable(:".into(), "").await;
        result.expect("tool is saved");
    });
    let endpoint = endpoint.kill_and_restart();
    let working = endpoint.server.call("execute_code", &json!({"code": "1 + 1"}));
    assert_eq!(working["result"]["structuredContent"]["result"], "2", "{working}");
    let broken = endpoint.server.call("execute_code", &json!({"code": "unparsable()"}));
    let error = &broken["result"]["structuredContent"]["error"];
    assert!(error["message"].as_str().is_some_and(|message| message.contains("unparsable")), "{broken}");
}

#[test]
fn memory_survives_restart_and_belongs_to_one_principal() {
    let variables = [("ONE", "1111111111111111"), ("OTHER", "2222222222222222")];
    let more = "[server.tokens.one]\nenv = \"ONE\"\n[server.tokens.other]\nenv = \"OTHER\"\n";
    let endpoint = Endpoint::with(more, &variables);
    let run = |server: &Server, token: &str, code: &str| {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": "run_python", "arguments": {"code": code}}});
        let headers =
            format!("Host: {}\r\nContent-Type: application/json\r\nAuthorization: Bearer {token}\r\n", server.address);
        let (_, body) = server.http("POST /mcp", &headers, &call.to_string());
        RunResult(serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")))
    };
    let (one, other) = (variables[0].1, variables[1].1);
    let save = "from mcp.runtime import *\nimport mcp.runtime as runtime\n\
                runtime.save_memory('plan', {'step': 1}, metadata={'kind': 'note'})\n\
                runtime.update_memory('plan', lambda plan: {**plan, 'step': plan['step'] + 1})\n\
                print(runtime.load_memory('plan'), runtime.memory_exists('plan'), runtime.get_memory_info('plan')['metadata'])";
    assert_eq!(run(&endpoint.server, one, save).stdout(), "{'step': 2} True {'kind': 'note'}");
    let load = "import mcp.runtime as runtime\n\
                print(runtime.load_memory('plan', default='none'), len(runtime.list_memories()))";
    assert_eq!(run(&endpoint.server, other, load).stdout(), "none 0");
    let endpoint = endpoint.kill_and_restart();
    assert_eq!(run(&endpoint.server, one, load).stdout(), "{'step': 2} 1");
    let save_invalid = "import mcp.runtime as runtime\n\
               for key, value in (('', 1), ('x' * 300, 1), ('a\\n', 1), ('big', 'x' * (2 << 20)), ('no', object())):\n\
               \x20   try:\n\
               \x20       runtime.save_memory(key, value)\n\
               \x20       print('saved')\n\
               \x20   except Exception as error:\n\
               \x20       print(type(error).__name__)";
    let refused = run(&endpoint.server, one, save_invalid);
    assert!(!refused.stdout().contains("saved") && refused.stdout().lines().count() == 5, "{refused:?}");
}

#[test]
fn default_session_and_its_grants_survive_server_restart() {
    let endpoint = Endpoint::start();
    endpoint.run_with("x = 5", &["tools"]);
    let endpoint = endpoint.kill_and_restart();
    assert_eq!(endpoint.run("x, await mcp_tools.echo(message='still granted')").text(), "(5, 'still granted')");
}
