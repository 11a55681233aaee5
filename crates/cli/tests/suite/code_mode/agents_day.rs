//! A day of an agent with servers that people use: it looks for tools, reads about them, calls four servers from one
//! piece of code, keeps what it wrote, and goes on after the server was killed.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_testkit::{Downloads, Server, User};
use serde_json::json;

use super::endpoint::Ran;

#[test]
fn an_agents_day() {
    let Some(downloads) = Downloads::find("an_agents_day") else { return };
    let data = User::Root.directory();
    fs::write(data.path().join("note.txt"), "buy oats\n").expect("it is written");
    let mut files = downloads.npm_entry("server-filesystem", &[data.path().to_str().expect("it is text")]);
    files["box"] = json!({"host_path": data.path(), "host_path_mode": "rw"});
    let mut memory = downloads.npm_entry("server-memory", &[]);
    memory["env"]["MEMORY_FILE_PATH"] = json!("/workspace/memory.jsonl");
    let servers = json!({"mcpServers": {
        "filesystem": files,
        "memory": memory,
        "time": downloads.pypi_entry("mcp-server-time", &["--local-timezone", "UTC"]),
        "everything": downloads.npm_entry("server-everything", &[]),
    }});
    let config = tempfile::tempdir().expect("a directory");
    let file = config.path().join("servers.json");
    fs::write(&file, servers.to_string()).expect("it is written");
    let variables = [("MCP_SERVERS_CONFIG", file.to_str().expect("it is text"))];
    let serve = |state| Server::start_again(state, &["--profile", "code"], &variables);
    let server = serve(Arc::new(tempfile::tempdir().expect("a directory")));
    let run = |server: &Server, code: &str, named: &[&str]| {
        let ran = Ran(server.call("run_python", &json!({"code": code, "servers": named, "timeout": 60})));
        assert!(!ran.is_error(), "{ran:?}");
        ran.stdout()
    };
    await_all(&server);

    let found = server.call("search_tools", &json!({"query": "read the text of a file", "limit": 5}));
    let found = found["result"]["structuredContent"]["tools"].to_string();
    assert!(found.contains("read_text_file"), "{found}");
    let docs = run(
        &server,
        "import mcp.runtime as runtime\nprint(runtime.query_tool_docs_sync('filesystem', 'read_text_file', detail='full'))",
        &[],
    );
    assert!(docs.contains("path"), "{docs}");

    let inside = format!("/workspace/{}/note.txt", data.path().file_name().expect("a name").to_string_lossy());
    let work = format!(
        "import asyncio\n\
         async def morning(path):\n\
         \x20   \"Everything that a day begins with.\"\n\
         \x20   note, clock, said, graph = await asyncio.gather(\n\
         \x20       mcp_filesystem.read_text_file(path=path),\n\
         \x20       mcp_time.get_current_time(timezone='UTC'),\n\
         \x20       mcp_everything.echo(message='good morning'),\n\
         \x20       mcp_memory.create_entities(entities=[\n\
         \x20           {{'name': 'note', 'entityType': 'text', 'observations': ['read']}}]),\n\
         \x20   )\n\
         \x20   return str(note), clock, said, graph\n\
         note, clock, said, graph = await morning({inside:?})\n\
         print('oats' in note, clock['timezone'], said, 'note' in str(graph))\n\
         save_tool(morning)"
    );
    let all = ["filesystem", "memory", "time", "everything"];
    assert_eq!(run(&server, &work, &all), "True UTC Echo: good morning True");

    let state = server.kill();
    let server = serve(state);
    // A fresh session, so that what is used is what was saved.
    let fresh = format!("note, clock, said, graph = await morning({inside:?})\nprint('oats' in note, said)");
    let home = "import os\nos.kill(os.getpid(), 9)";
    server.call("run_python", &json!({"code": home}));
    assert_eq!(run(&server, &fresh, &all), "True Echo: good morning");
    drop(server);
}

/// What the servers need may have to be installed first, on a machine that is busy with other tests.
fn await_all(server: &Server) {
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
