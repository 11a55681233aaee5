//! Popular servers from the package registries, and local projects: each is hosted in a sandbox or reached by its URL,
//! and called through the gateway.

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
    assert_everything_works(&gateway);
    let environment = gateway.text("get-env", &json!({}));
    assert!(!environment.contains(gateway::SECRET), "{environment}");
}

#[test]
fn server_everything_over_sse() {
    let Some(downloads) = Downloads::find("server_everything_over_sse") else { return };
    let remote = RemoteServer::start(&downloads, "sse");
    let entry = json!({"mode": "sse", "url": format!("http://127.0.0.1:{}/sse", remote.port)});
    assert_everything_works(&Gateway::hosting("everything", &entry));
    // The same URL in an entry that does not name the transport.
    let entry = json!({"url": format!("http://127.0.0.1:{}/sse", remote.port)});
    assert_everything_works(&Gateway::hosting("everything", &entry));
}

#[test]
fn server_everything_over_streamable_http() {
    let Some(downloads) = Downloads::find("server_everything_over_streamable_http") else { return };
    let remote = RemoteServer::start(&downloads, "streamableHttp");
    let entry = json!({"mode": "http", "url": format!("http://127.0.0.1:{}/mcp", remote.port)});
    assert_everything_works(&Gateway::hosting("everything", &entry));
}

/// Checks that texts, images, links and annotations arrive unchanged.
fn assert_everything_works(gateway: &Gateway) {
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
fn elicitation_of_legacy_server_reaches_modern_client() {
    let Some(downloads) = Downloads::find("elicitation_of_legacy_server_reaches_modern_client") else { return };
    let gateway = Gateway::hosting("everything", &downloads.npm_entry("server-everything", &[]));
    let tool = "trigger-elicitation-request";
    let first = gateway.modern_response(tool, json!({"arguments": {}}));
    assert_eq!(first["result"]["resultType"], "input_required", "{first}");
    let requests = first["result"]["inputRequests"].as_object().expect("an object");
    let (key, request) = requests.iter().next().expect("one request");
    assert_eq!(request["method"], "elicitation/create", "{first}");
    let responses = json!({key: {"action": "accept", "content": {"name": "Ada"}}});
    let second = json!({
        "arguments": {}, "inputResponses": responses, "requestState": first["result"]["requestState"],
    });
    let response = gateway.modern_response(tool, second.clone());
    assert!(response["result"]["content"].to_string().contains("Name: Ada"), "{response}");
    // The call has ended, so its state cannot be used again.
    let replayed = gateway.modern_response(tool, second);
    assert_eq!(replayed["error"]["code"], -32602, "{replayed}");
}

#[test]
fn server_filesystem_on_a_volume() {
    let Some(downloads) = Downloads::find("server_filesystem_on_a_volume") else { return };
    let data = User::Root.directory();
    fs::write(data.path().join("note.txt"), "a note\n").expect("write the file");
    let mut entry = downloads.npm_entry("server-filesystem", &[data.path().to_str().expect("valid UTF-8")]);
    entry["box"] = json!({"host_path": data.path(), "host_path_mode": "rw"});
    let gateway = Gateway::hosting("files", &entry);
    let inside = |name: &str| path_inside(data.path()).join(name);
    assert_eq!(gateway.text("read_text_file", &json!({"path": inside("note.txt")})), "a note\n");
    gateway.call("write_file", &json!({"path": inside("new.txt"), "content": "from inside"}));
    assert_eq!(fs::read_to_string(data.path().join("new.txt")).expect("read the file on the host"), "from inside");
    let refused = gateway.response("read_text_file", &json!({"path": "/etc/passwd"}));
    assert_eq!(refused["result"]["isError"], true, "{refused}");
}

/// Returns the path in the sandbox of a read-write directory of the host.
fn path_inside(directory: &Path) -> PathBuf {
    Path::new("/workspace").join(directory.file_name().expect("the path has a file name"))
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
        // The history shows that one process handles all calls.
        let response = gateway.call("sequentialthinking", &thought);
        assert_eq!(response["structuredContent"]["thoughtHistoryLength"], number, "{response}");
    }
}

#[test]
fn mcp_server_git() {
    let Some(downloads) = Downloads::find("mcp_server_git") else { return };
    let repository = User::Root.directory();
    let path = repository.path().to_str().expect("valid UTF-8");
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
        assert!(Command::new("git").args(["-C", path]).args(arguments).status().expect("run git").success());
    }
    let mut entry = downloads.pypi_entry("mcp-server-git", &["--repository", path]);
    // A staged copy would have no .git. In the sandbox the directory belongs to another user, which git refuses unless
    // it is a safe.directory.
    entry["box"] = json!({"host_path": path, "host_path_mode": "rw"});
    let git = [("GIT_CONFIG_COUNT", "1"), ("GIT_CONFIG_KEY_0", "safe.directory"), ("GIT_CONFIG_VALUE_0", "*")];
    for (name, value) in git {
        entry["env"][name] = json!(value);
    }
    let gateway = Gateway::hosting("git", &entry);
    let inside = path_inside(repository.path());
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
    let response = gateway.call("convert_time", &noon);
    assert_eq!(response["structuredContent"]["time_difference"], "+9.0h", "{response}");
}

#[test]
fn mcp_server_fetch_reaches_only_allowed_addresses() {
    let Some(downloads) = Downloads::find("mcp_server_fetch_reaches_only_allowed_addresses") else { return };
    let page = "<html><body><article><h1>A page</h1><p>A page about heliotrope.</p></article></body></html>";
    let (allowed, other) = (network::serve(page), network::serve(page));
    let mut entry = downloads.pypi_entry("mcp-server-fetch", &["--ignore-robots-txt", "--allow-private-ips"]);
    entry["box"] = json!({"allow": [format!("127.0.0.1:{allowed}+private")]});
    // Otherwise loopback addresses would not go through the proxy, and be those of the sandbox.
    (entry["env"]["NO_PROXY"], entry["env"]["no_proxy"]) = (json!(""), json!(""));
    let gateway = Gateway::hosting("fetch", &entry);
    // Raw, because the conversion to text installs a package at run time if Node.js exists.
    let url = |port: u16| json!({"url": format!("http://127.0.0.1:{port}/"), "raw": true});
    let text = gateway.text("fetch", &url(allowed));
    assert!(text.contains("A page about heliotrope."), "{text}");
    let refused = gateway.response("fetch", &url(other));
    assert!(refused["result"]["isError"] == true && !refused.to_string().contains("heliotrope"), "{refused}");
}

#[test]
fn project_with_requirements_is_hosted() {
    let program = fixture_path("project_requirements/server.py");
    assert_shouting_works(&json!({"command": "python", "args": [program]}));
}

#[test]
fn project_with_pyproject_is_hosted() {
    let project = fixture_path("project_pyproject");
    assert_shouting_works(&json!({"command": "python", "args": ["-m", "shouting"], "box": {"host_path": project}}));
}

fn assert_shouting_works(entry: &Value) {
    let gateway = Gateway::hosting("shouting", entry);
    assert_eq!(gateway.text("shout", &json!({"text": "hello"})), "HELLO! (six 1.17.0)");
}
