//! What users of other bridges for code expect: their names, their files, and servers that start on demand.

use std::fs;
use std::path::Path;
use std::process::Command;

use ringfence_testkit::{fixture_path, wait_until};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::endpoint::Endpoint;
use crate::BINARY;

/// A home directory with files in `MCPs`.
fn home(files: &[(&str, &str)]) -> TempDir {
    let home = tempfile::tempdir().expect("temporary directory");
    fs::create_dir(home.path().join("MCPs")).expect("directory is created");
    for (name, text) in files {
        fs::write(home.path().join("MCPs").join(name), text).expect("file is written");
    }
    home
}

fn text(path: &Path) -> &str {
    path.to_str().expect("path is UTF-8")
}

fn server_info(endpoint: &Endpoint, name: &str) -> Value {
    let headers = format!("Host: {}\r\n", endpoint.server.address);
    let (_, body) = endpoint.server.http(&format!("GET /v1/servers/{name}"), &headers, "");
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

#[test]
fn names_of_other_bridges_are_understood() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let program = fixture_path("code_server.py").display().to_string();
    let directory_path = text(directory.path());
    let here = format!("[servers.here]\ncommand = \"python3\"\nargs = [{program:?}]\ncwd = {directory_path:?}\n");
    let endpoint = Endpoint::with(&here, &[]);
    let result = endpoint.run_with(
        "import mcp.runtime as runtime\n\
         found = (await runtime.search_tool_docs('add numbers', limit=1, detail='full'))[0]\n\
         print(found['toolAlias'], found['serverAlias'] in ('here', 'more', 'tools'), sorted(found['input_schema']['properties']))\n\
         doc = runtime.query_tool_docs_sync('tools', 'get-thing')\n\
         print(doc['serverAlias'], doc['toolAlias'], 'input_schema' in doc)\n\
         print('echo' in [tool['name'] for tool in await mcp_tools.list_tools()])\n\
         print(runtime.describe_server('here')['cwd'], runtime.describe_server('tools')['cwd'])\n\
         try:\n\
         \x20   await mcp_tools.add_numbers(a=1)\n\
         except runtime.MCPError as error:\n\
         \x20   print(error.kind, error.tool, 'is missing b' in str(error))",
        &["tools"],
    );
    let expected = format!(
        "add_numbers True ['a', 'b']\ntools get_thing False\nTrue\n{directory_path} None\ninvalid add_numbers True"
    );
    assert_eq!(result.stdout(), expected, "{result:?}");
}

#[test]
fn servers_in_home_directory_start_when_they_are_used() {
    let program = fixture_path("code_server.py").display().to_string();
    let entry = json!({"command": "python3", "args": [program]});
    let described = json!({"description": "Things of a file", "mcpServers": {"lazy": entry, "listed": entry}});
    let other = json!({"mcpServers": {"direct": entry, "tools": {"command": "not-this-one"}}});
    let home = home(&[("one.json", &described.to_string()), ("two.json", &other.to_string())]);
    let endpoint =
        Endpoint::with("[profiles.bound]\nmode = \"code\"\nservers = [\"listed\"]\n", &[("HOME", text(home.path()))]);
    for name in ["lazy", "listed", "direct"] {
        assert_eq!(server_info(&endpoint, name)["status"], "idle");
    }
    let listed = endpoint.server.request("tools/list", &json!({}))["result"]["tools"].to_string();
    assert!(listed.contains("tools__echo") && !listed.contains("lazy__echo"), "{listed}");
    let known = endpoint.run(
        "import mcp.runtime as runtime\n\
         {server['name']: server['description'] for server in runtime.discovered_servers(detailed=True)}['lazy']",
    );
    assert_eq!(known.text(), "'Things of a file'", "{known:?}");
    assert_eq!(server_info(&endpoint, "lazy")["status"], "idle", "a list starts nothing");

    let used = endpoint.run_with("await mcp_lazy.echo(message='started')", &["lazy"]);
    assert_eq!(used.text(), "'started'", "{used:?}");
    let direct = endpoint.server.call("direct__echo", &json!({"message": "by a client"}));
    assert_eq!(direct["result"]["content"][0]["text"], "by a client", "{direct}");
    // The profile grants the server, so no call names it.
    let call = json!({"name": "run_python", "arguments": {"code": "await mcp_listed.echo(message='bound')"}});
    let bound = endpoint.at("bound", "tools/call", &call);
    assert!(bound["result"]["content"][0]["text"].as_str().is_some_and(|text| text.contains("'bound'")), "{bound}");
    for name in ["lazy", "listed", "direct", "tools"] {
        assert_eq!(server_info(&endpoint, name)["status"], "connected");
    }
}

#[test]
fn functions_of_a_file_become_saved_tools_without_being_executed_on_the_host() {
    let marker = tempfile::tempdir().expect("temporary directory");
    let path = marker.path().join("executed");
    let source = format!(
        "import math\nopen({path:?}, 'w')\n\ndef _square(x):\n    return x * x\n\n@save_tool\ndef area(radius):\n    \
         \"\"\"The area of a circle.\"\"\"\n    return round(math.pi * _square(radius), 2)\n"
    );
    let home = home(&[("user_tools.py", &source)]);
    let endpoint = Endpoint::with("", &[("HOME", text(home.path()))]);
    let import = |arguments: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(["code", "import-tools", "--json"]).args(arguments).current_dir(home.path());
        command.env_clear().env("HOME", home.path()).env("RINGFENCE_STATE_DIR", endpoint.server.state.path());
        let output = command.output().expect("command runs");
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).expect("valid JSON")
    };
    assert_eq!(import(&["--dry-run"])["imported"], json!([{"name": "area", "version": null}]));
    assert_eq!(import(&[])["imported"], json!([{"name": "area", "version": 1}]));
    let again = import(&[]);
    assert_eq!((&again["imported"], &again["skipped"][0]["name"]), (&json!([]), &json!("area")));
    assert_eq!(import(&["--replace"])["imported"][0]["version"], 2);
    wait_until("the tool was not offered", || endpoint.run("'area' in globals()").text() == "True");
    assert_eq!(endpoint.run("area(2), area.__doc__").text(), "(12.57, 'The area of a circle.')");
    assert!(!path.exists());
}
