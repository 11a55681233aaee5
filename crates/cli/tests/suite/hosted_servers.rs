//! Servers that people use, from the registries, and projects of their own: each hosted in a sandbox or reached by its
//! address, and called through the gateway as an agent would.

mod gateway;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ringfence_testkit::{Downloads, RemoteServer, User, fixture_path};
use serde_json::{Value, json};

use crate::network;
use gateway::Gateway;

#[test]
fn server_everything_over_stdio() {
    let Some(downloads) = Downloads::find("server_everything_over_stdio") else { return };
    let gateway = Gateway::hosting("everything", &downloads.npm_entry("server-everything", &[]));
    everything(&gateway);
    let environment = gateway.text("get-env", &json!({}));
    assert!(!environment.contains(gateway::SECRET), "{environment}");
}

#[test]
fn server_everything_over_sse() {
    let Some(downloads) = Downloads::find("server_everything_over_sse") else { return };
    let remote = RemoteServer::start(&downloads, "sse");
    let entry = json!({"mode": "sse", "url": format!("http://127.0.0.1:{}/sse", remote.port)});
    everything(&Gateway::hosting("everything", &entry));
    // The same address as people have it who do not know what is behind it.
    let entry = json!({"url": format!("http://127.0.0.1:{}/sse", remote.port)});
    everything(&Gateway::hosting("everything", &entry));
}

#[test]
fn server_everything_over_streamable_http() {
    let Some(downloads) = Downloads::find("server_everything_over_streamable_http") else { return };
    let remote = RemoteServer::start(&downloads, "streamableHttp");
    let entry = json!({"mode": "http", "url": format!("http://127.0.0.1:{}/mcp", remote.port)});
    everything(&Gateway::hosting("everything", &entry));
}

/// Texts, pictures, links and annotations arrive as they were sent.
fn everything(gateway: &Gateway) {
    assert_eq!(gateway.text("echo", &json!({"message": "hi"})), "Echo: hi");
    assert_eq!(gateway.text("get-sum", &json!({"a": 2, "b": 3})), "The sum of 2 and 3 is 5.");
    let image = &gateway.call("get-tiny-image", &json!({}))["content"][1];
    assert_eq!((&image["type"], &image["mimeType"]), (&json!("image"), &json!("image/png")));
    assert!(image["data"].as_str().is_some_and(|data| data.starts_with("iVBORw0KGgo")), "{image}");
    let link = &gateway.call("get-resource-links", &json!({"count": 1}))["content"][1];
    assert_eq!((&link["type"], &link["mimeType"]), (&json!("resource_link"), &json!("text/plain")));
    let annotated = &gateway.call("get-annotated-message", &json!({"messageType": "error"}))["content"][0];
    assert_eq!(annotated["annotations"], json!({"audience": ["user", "assistant"], "priority": 1}));
}

#[test]
fn a_question_of_a_legacy_server_reaches_a_modern_client() {
    let Some(downloads) = Downloads::find("a_question_of_a_legacy_server_reaches_a_modern_client") else { return };
    let gateway = Gateway::hosting("everything", &downloads.npm_entry("server-everything", &[]));
    let tool = "trigger-elicitation-request";
    let asked = gateway.modern_answer(tool, json!({"arguments": {}}));
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    let questions = asked["result"]["inputRequests"].as_object().expect("questions");
    let (key, question) = questions.iter().next().expect("one question");
    assert_eq!(question["method"], "elicitation/create", "{asked}");
    let answers = json!({key: {"action": "accept", "content": {"name": "Ada"}}});
    let again = json!({
        "arguments": {}, "inputResponses": answers, "requestState": asked["result"]["requestState"],
    });
    let answer = gateway.modern_answer(tool, again.clone());
    assert!(answer["result"]["content"].to_string().contains("Name: Ada"), "{answer}");
    // It was one call, and is over.
    let replayed = gateway.modern_answer(tool, again);
    assert_eq!(replayed["error"]["code"], -32602, "{replayed}");
}

#[test]
fn server_filesystem_on_a_volume() {
    let Some(downloads) = Downloads::find("server_filesystem_on_a_volume") else { return };
    let data = User::Root.directory();
    fs::write(data.path().join("note.txt"), "a note\n").expect("it is written");
    let mut entry = downloads.npm_entry("server-filesystem", &[data.path().to_str().expect("it is text")]);
    entry["box"] = json!({"host_path": data.path(), "host_path_mode": "rw"});
    let gateway = Gateway::hosting("files", &entry);
    let inside = |name: &str| seen_inside(data.path()).join(name);
    assert_eq!(gateway.text("read_text_file", &json!({"path": inside("note.txt")})), "a note\n");
    gateway.call("write_file", &json!({"path": inside("new.txt"), "content": "from inside"}));
    assert_eq!(fs::read_to_string(data.path().join("new.txt")).expect("it is on the host"), "from inside");
    let refused = gateway.answer("read_text_file", &json!({"path": "/etc/passwd"}));
    assert_eq!(refused["result"]["isError"], true, "{refused}");
}

/// Where a server finds a directory of the host that it may write.
fn seen_inside(directory: &Path) -> PathBuf {
    Path::new("/workspace").join(directory.file_name().expect("it has a name"))
}

#[test]
fn server_memory() {
    let Some(downloads) = Downloads::find("server_memory") else { return };
    let mut entry = downloads.npm_entry("server-memory", &[]);
    entry["env"]["MEMORY_FILE_PATH"] = json!("/workspace/memory.jsonl");
    let gateway = Gateway::hosting("memory", &entry);
    let ada = json!({"name": "Ada", "entityType": "person", "observations": ["wrote notes"]});
    gateway.call("create_entities", &json!({"entities": [ada]}));
    let found = gateway.call("search_nodes", &json!({"query": "Ada"}));
    assert_eq!(found["structuredContent"], json!({"entities": [ada], "relations": []}));
}

#[test]
fn server_sequential_thinking() {
    let Some(downloads) = Downloads::find("server_sequential_thinking") else { return };
    let gateway = Gateway::hosting("thinking", &downloads.npm_entry("server-sequential-thinking", &[]));
    for number in 1..=2 {
        let thought =
            json!({"thought": "so", "nextThoughtNeeded": number < 2, "thoughtNumber": number, "totalThoughts": 2});
        // It remembers from call to call, so that all went to one process.
        let answer = gateway.call("sequentialthinking", &thought);
        assert_eq!(answer["structuredContent"]["thoughtHistoryLength"], number, "{answer}");
    }
}

#[test]
fn mcp_server_git() {
    let Some(downloads) = Downloads::find("mcp_server_git") else { return };
    let repository = User::Root.directory();
    let path = repository.path().to_str().expect("it is text");
    for arguments in [
        &["init", "--quiet", "--initial-branch", "main"][..],
        &[
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@example.com",
            "commit",
            "--quiet",
            "--allow-empty",
            "-m",
            "The first",
        ],
    ] {
        assert!(Command::new("git").args(["-C", path]).args(arguments).status().expect("git runs").success());
    }
    let mut entry = downloads.pypi_entry("mcp-server-git", &["--repository", path]);
    // Staged, it would be without its .git. Its owner is not whom it is seen by, which git minds.
    entry["box"] = json!({"host_path": path, "host_path_mode": "rw"});
    let git = [("GIT_CONFIG_COUNT", "1"), ("GIT_CONFIG_KEY_0", "safe.directory"), ("GIT_CONFIG_VALUE_0", "*")];
    for (name, value) in git {
        entry["env"][name] = json!(value);
    }
    let gateway = Gateway::hosting("git", &entry);
    let inside = seen_inside(repository.path());
    let log = gateway.text("git_log", &json!({"repo_path": inside}));
    assert!(log.contains("Message: The first"), "{log}");
    let status = gateway.text("git_status", &json!({"repo_path": inside}));
    assert!(status.contains("On branch main"), "{status}");
}

#[test]
fn mcp_server_time() {
    let Some(downloads) = Downloads::find("mcp_server_time") else { return };
    let gateway = Gateway::hosting("time", &downloads.pypi_entry("mcp-server-time", &["--local-timezone", "UTC"]));
    let noon = json!({"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"});
    let answer = gateway.call("convert_time", &noon);
    assert_eq!(answer["structuredContent"]["time_difference"], "+9.0h", "{answer}");
}

#[test]
fn mcp_server_fetch_reaches_what_is_allowed() {
    let Some(downloads) = Downloads::find("mcp_server_fetch") else { return };
    let page = "<html><body><article><h1>A page</h1><p>The word is heliotrope.</p></article></body></html>";
    let (allowed, other) = (network::serve(page), network::serve(page));
    let mut entry = downloads.pypi_entry("mcp-server-fetch", &["--ignore-robots-txt", "--allow-private-ips"]);
    entry["box"] = json!({"allow": [format!("127.0.0.1:{allowed}+private")]});
    // Loopback addresses would otherwise be the sandbox's own.
    (entry["env"]["NO_PROXY"], entry["env"]["no_proxy"]) = (json!(""), json!(""));
    let gateway = Gateway::hosting("fetch", &entry);
    // To make text of it, it would have a part of it installed when it runs, where there is node.
    let url = |port: u16| json!({"url": format!("http://127.0.0.1:{port}/"), "raw": true});
    let text = gateway.text("fetch", &url(allowed));
    assert!(text.contains("The word is heliotrope."), "{text}");
    let refused = gateway.answer("fetch", &url(other));
    assert!(refused["result"]["isError"] == true && !refused.to_string().contains("heliotrope"), "{refused}");
}

#[test]
fn a_project_with_requirements() {
    let program = fixture_path("project_requirements/server.py");
    shout(&json!({"command": "python", "args": [program]}));
}

#[test]
fn a_project_with_a_pyproject() {
    let project = fixture_path("project_pyproject");
    shout(&json!({"command": "python", "args": ["-m", "shouting"], "box": {"host_path": project}}));
}

fn shout(entry: &Value) {
    let gateway = Gateway::hosting("shouting", entry);
    assert_eq!(gateway.text("shout", &json!({"text": "hello"})), "HELLO! (six 1.17.0)");
}
