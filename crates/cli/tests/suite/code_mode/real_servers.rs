//! Code mode with real, widely used MCP servers: an agent searches for tools, reads their documentation, calls four
//! servers from one piece of code, saves a function, and uses it after the ringfence server was killed and restarted.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_testkit::{Downloads, Server, User};
use serde_json::json;

use super::endpoint::RunResult;

#[test]
fn code_calls_four_servers_and_saved_function_survives_restart() {
    let Some(downloads) = Downloads::find("code_calls_four_servers_and_saved_function_survives_restart") else {
        return;
    };
    let data = User::Root.directory();
    fs::write(data.path().join("note.txt"), "buy oats\n").expect("file is written");
    let mut files = downloads.npm_entry("server-filesystem", &[data.path().to_str().expect("path is UTF-8")]);
    files["box"] = json!({"host_path": data.path(), "host_path_mode": "rw"});
    let mut memory = downloads.npm_entry("server-memory", &[]);
    memory["env"]["MEMORY_FILE_PATH"] = json!("/workspace/memory.jsonl");
    let servers = json!({"mcpServers": {
        "filesystem": files,
        "memory": memory,
        "time": downloads.pypi_entry("mcp-server-time", &["--local-timezone", "UTC"]),
        "everything": downloads.npm_entry("server-everything", &[]),
    }});
    let config = tempfile::tempdir().expect("temporary directory");
    let file = config.path().join("servers.json");
    fs::write(&file, servers.to_string()).expect("file is written");
    let variables = [("MCP_SERVERS_CONFIG", file.to_str().expect("path is UTF-8"))];
    let start_server = |state| Server::start_again(state, &["--profile", "code"], &variables);
    let server = start_server(Arc::new(tempfile::tempdir().expect("temporary directory")));
    let run = |server: &Server, code: &str, servers: &[&str]| {
        let result = RunResult(server.call("run_python", &json!({"code": code, "servers": servers, "timeout": 60})));
        assert!(!result.is_error(), "{result:?}");
        result.stdout()
    };
    wait_until_connected(&server);

    let found = server.call("search_tools", &json!({"query": "read the text of a file", "limit": 5}));
    let found = found["result"]["structuredContent"]["tools"].to_string();
    assert!(found.contains("read_text_file"), "{found}");
    let docs = run(
        &server,
        "import mcp.runtime as runtime\nprint(runtime.query_tool_docs_sync('filesystem', 'read_text_file', detail='full'))",
        &[],
    );
    assert!(docs.contains("path"), "{docs}");

    let guest_path =
        format!("/workspace/{}/note.txt", data.path().file_name().expect("directory has a name").to_string_lossy());
    let code = format!(
        "import asyncio\n\
         async def collect(path):\n\
         \x20   \"Calls four servers in parallel.\"\n\
         \x20   note, clock, echoed, graph = await asyncio.gather(\n\
         \x20       mcp_filesystem.read_text_file(path=path),\n\
         \x20       mcp_time.get_current_time(timezone='UTC'),\n\
         \x20       mcp_everything.echo(message='good morning'),\n\
         \x20       mcp_memory.create_entities(entities=[\n\
         \x20           {{'name': 'note', 'entityType': 'text', 'observations': ['read']}}]),\n\
         \x20   )\n\
         \x20   return str(note), clock, echoed, graph\n\
         note, clock, echoed, graph = await collect({guest_path:?})\n\
         print('oats' in note, clock['timezone'], echoed, 'note' in str(graph))\n\
         save_tool(collect)"
    );
    let all = ["filesystem", "memory", "time", "everything"];
    assert_eq!(run(&server, &code, &all), "True UTC Echo: good morning True");

    let state = server.kill();
    let server = start_server(state);
    // Ends the interpreter, so that the next call uses the saved function in a new session.
    let code = format!("note, clock, echoed, graph = await collect({guest_path:?})\nprint('oats' in note, echoed)");
    let kill_interpreter = "import os\nos.kill(os.getpid(), 9)";
    server.call("run_python", &json!({"code": kill_interpreter}));
    assert_eq!(run(&server, &code, &all), "True Echo: good morning");
    drop(server);
}

/// Waits until all four servers are connected. The deadline is long: their packages may have to be installed first, on
/// a machine that is busy with other tests.
fn wait_until_connected(server: &Server) {
    let deadline = Instant::now() + Duration::from_secs(600);
    let headers = format!("Host: {}\r\n", server.address);
    loop {
        let (_, listed) = server.http("GET /v1/servers", &headers, "");
        if listed.matches("\"status\":\"connected\"").count() == 4 {
            return;
        }
        assert!(Instant::now() < deadline, "{listed}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
