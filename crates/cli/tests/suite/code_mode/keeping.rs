//! What outlives a session: saved tools, and memory, each caller's own.

use ringfence_core::Language;
use ringfence_testkit::Server;
use serde_json::json;

use super::endpoint::{Endpoint, Ran};

const SAVE: &str = "import math\n\
                    def area(radius):\n\
                    \x20   \"The area of a circle.\"\n\
                    \x20   return round(math.pi * radius ** 2, 2)\n";

#[test]
fn a_saved_tool_is_there_in_later_sessions_and_has_versions() {
    let endpoint = Endpoint::start();
    let saved = endpoint.run(&format!("{SAVE}save_tool(area)"));
    assert!(!saved.is_error(), "{saved:?}");
    endpoint.run("import mcp.runtime as runtime\ndef area(radius):\n    return radius\nruntime.save_tool(area)");
    let elsewhere = |code: &str| endpoint.server.call("execute_code", &json!({"code": code}));
    let used = elsewhere("area(7)");
    assert_eq!(used["result"]["structuredContent"]["result"], "7", "{used}");
    let listed = elsewhere(
        "import mcp.runtime as runtime\n\
         [(tool['name'], tool['version']) for tool in runtime.saved_tools()]",
    );
    assert_eq!(listed["result"]["structuredContent"]["result"], "[('area', 2)]", "{listed}");
    let endpoint = endpoint.killed_and_started_again();
    let used = endpoint.server.call("execute_code", &json!({"code": "area(8)"}));
    assert_eq!(used["result"]["structuredContent"]["result"], "8", "{used}");
    endpoint.run("import mcp.runtime as runtime\nruntime.delete_tool('area')");
    let gone = endpoint.server.call("execute_code", &json!({"code": "area(8)"}));
    assert!(gone["result"]["structuredContent"]["error"]["name"] == "NameError", "{gone}");
}

#[test]
fn a_broken_saved_tool_breaks_nothing_but_its_own_use() {
    let endpoint = Endpoint::start();
    // Around the helpers, which save nothing that is broken.
    endpoint.store(async |store| {
        let saved = store.save_tool("local", Language::Python, "frail", "def frail(:".into(), "").await;
        saved.expect("it is saved");
    });
    let endpoint = endpoint.killed_and_started_again();
    let fine = endpoint.server.call("execute_code", &json!({"code": "1 + 1"}));
    assert_eq!(fine["result"]["structuredContent"]["result"], "2", "{fine}");
    let broken = endpoint.server.call("execute_code", &json!({"code": "frail()"}));
    let error = &broken["result"]["structuredContent"]["error"];
    assert!(error["message"].as_str().is_some_and(|message| message.contains("frail")), "{broken}");
}

#[test]
fn memory_lasts_and_belongs_to_its_caller() {
    let variables = [("ONE", "1111111111111111"), ("OTHER", "2222222222222222")];
    let more = "[server.tokens.one]\nenv = \"ONE\"\n[server.tokens.other]\nenv = \"OTHER\"\n";
    let endpoint = Endpoint::with(more, &variables);
    let run = |server: &Server, token: &str, code: &str| {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": "run_python", "arguments": {"code": code}}});
        let headers =
            format!("Host: {}\r\nContent-Type: application/json\r\nAuthorization: Bearer {token}\r\n", server.address);
        let (_, body) = server.http("POST /mcp", &headers, &call.to_string());
        Ran(serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")))
    };
    let (one, other) = (variables[0].1, variables[1].1);
    let save = "from mcp.runtime import *\nimport mcp.runtime as runtime\n\
                runtime.save_memory('plan', {'step': 1}, metadata={'kind': 'note'})\n\
                runtime.update_memory('plan', lambda plan: {**plan, 'step': plan['step'] + 1})\n\
                print(runtime.load_memory('plan'), runtime.memory_exists('plan'), runtime.get_memory_info('plan')['metadata'])";
    assert_eq!(run(&endpoint.server, one, save).stdout(), "{'step': 2} True {'kind': 'note'}");
    let look = "import mcp.runtime as runtime\n\
                print(runtime.load_memory('plan', default='none'), len(runtime.list_memories()))";
    assert_eq!(run(&endpoint.server, other, look).stdout(), "none 0");
    let endpoint = endpoint.killed_and_started_again();
    assert_eq!(run(&endpoint.server, one, look).stdout(), "{'step': 2} 1");
    let odd = "import mcp.runtime as runtime\n\
               for key, value in (('', 1), ('x' * 300, 1), ('a\\n', 1), ('big', 'x' * (2 << 20)), ('no', object())):\n\
               \x20   try:\n\
               \x20       runtime.save_memory(key, value)\n\
               \x20       print('kept')\n\
               \x20   except Exception as error:\n\
               \x20       print(type(error).__name__)";
    let refused = run(&endpoint.server, one, odd);
    assert!(!refused.stdout().contains("kept") && refused.stdout().lines().count() == 5, "{refused:?}");
}

#[test]
fn the_session_of_run_python_survives_the_server() {
    let endpoint = Endpoint::start();
    endpoint.run_with("x = 5", &["tools"]);
    let endpoint = endpoint.killed_and_started_again();
    assert_eq!(endpoint.run("x, await mcp_tools.echo(message='granted still')").text(), "(5, 'granted still')");
}
