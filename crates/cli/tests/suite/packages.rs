//! Packages in sessions: installed by the guest, and imported by the running kernel. The wheels are in a volume, so no
//! registry is needed.

mod registries;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use ringfence_testkit::{Server, User, for_each_user, skip};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Writes wheels that contain one module each: `example_one` and `example_two`, of distributions with the same names.
const WRITE_WHEELS: &str = r#"
import sys, zipfile
for name in ("example_one", "example_two"):
    files = {
        f"{name}.py": "answer = 42\n",
        f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n",
        f"{name}-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{name}-1.0.dist-info/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{name}-1.0.dist-info/RECORD"])
    with zipfile.ZipFile(f"{sys.argv[1]}/{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
"#;

const INSTALL: &str = "pip install --quiet --no-index --find-links /wheels";

fn wheels() -> TempDir {
    let directory = tempfile::Builder::new().prefix("ringfence-test-").tempdir_in("/tmp").expect("a directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("set the mode");
    let written = Command::new("python3").args(["-I", "-c", WRITE_WHEELS]).arg(directory.path()).status();
    assert!(written.expect("python3 starts").success());
    directory
}

/// Whether Python sessions have an installer: uv, or the pip of their interpreter.
fn has_installer(server: &Server, session: &str) -> bool {
    let version = run(server, session, "pip --version");
    assert!(
        version["exit_code"] == 0 || version["stderr"].as_str().is_some_and(|text| text.contains("hint: ")),
        "{version}"
    );
    version["exit_code"] == 0
}

fn run(server: &Server, session: &str, command: &str) -> Value {
    let response = server.call("execute_command", &json!({"command": command, "session_id": session, "timeout": 120}));
    response["result"]["structuredContent"].clone()
}

fn assert_runs(server: &Server, session: &str, command: &str) -> Value {
    let fields = run(server, session, command);
    assert_eq!(fields["exit_code"], 0, "{command}: {fields}");
    fields
}

fn traceback(fields: &Value) -> &str {
    fields["error"]["traceback"].as_str().unwrap_or_default()
}

#[test]
fn installed_package_is_imported_by_the_running_kernel() {
    let wheels = wheels();
    let volume = format!("{}:/wheels", wheels.path().display());
    for_each_user("installed_package_is_imported_by_the_running_kernel", |user| {
        for pool in ["python=1", "python=0"] {
            let server = Server::start_as(user, &["--volume", &volume], &[("RINGFENCE_SESSIONS_POOL", pool)]);
            let session = server.create_session("python", "pass");
            if !has_installer(&server, &session) {
                skip("installed_package_is_imported_by_the_running_kernel", "the Python of this host has no pip");
                return;
            }
            let missing = server.execute(&session, "import example_one");
            let hint = "hint: run `pip install example-one` with execute_command";
            assert!(traceback(&missing).trim_end().ends_with(hint), "{user:?} {pool}: {missing}");

            assert_runs(&server, &session, &format!("{INSTALL} example-one"));
            let found =
                server.execute(&session, "import example_one; example_one.__file__.startswith('/workspace/.venv/')");
            assert_eq!(found["result"], "True", "{user:?} {pool}: {found}");

            let arguments: Vec<&str> = INSTALL.split(' ').skip(1).collect();
            let in_cell = format!(
                "import subprocess, sys\n\
                 subprocess.run([sys.executable, '-m', 'pip', *{arguments:?}, 'example-two'], check=True)\n\
                 import example_two; example_two.answer"
            );
            assert_eq!(server.execute(&session, &in_cell)["result"], "42", "{user:?} {pool}");

            assert_runs(&server, &session, "pip uninstall -y example-two && ! python -c 'import example_two'");
            let editable = "mkdir -p source && echo 'answer = 43' > source/edited.py && \
                            cd .venv/lib/python3.*/site-packages && echo /workspace/source > __editable__.edited.pth";
            assert_runs(&server, &session, editable);
            assert_eq!(server.execute(&session, "import edited; edited.answer")["result"], "43", "{user:?} {pool}");
        }
    });
}

#[test]
fn environment_is_used_by_commands_and_left_out_of_listings() {
    for_each_user("environment_is_used_by_commands_and_left_out_of_listings", |user| {
        let server = Server::start_as(user, &[], &[]);
        let session = server.create_session("python", "pass");
        let printed = assert_runs(&server, &session, "python -c 'import sys; print(sys.prefix, sys.base_prefix)'");
        let prefixes: Vec<&str> = printed["stdout"].as_str().unwrap_or_default().split_whitespace().collect();
        assert_eq!(prefixes[0], "/workspace/.venv", "{user:?}: {printed}");
        assert_ne!(prefixes[0], prefixes[1], "{user:?}: {printed}");
        let owner = assert_runs(&server, &session, "touch x && stat -c %U x .venv .venv/bin && test -w .venv/lib");
        assert_eq!(owner["stdout"], "agent\nagent\nagent\n", "{user:?}");

        let listed = |path: &str| {
            let response = server.call("list_files", &json!({"session_id": session, "path": path}));
            response["result"]["structuredContent"].clone()
        };
        let workspace = listed(".");
        assert_eq!(workspace["entries"].as_array().map(Vec::len), Some(1), "{user:?}: {workspace}");
        assert!(listed(".venv").to_string().contains("pyvenv.cfg"), "{user:?}");
    });
}

#[test]
fn session_without_its_environment_still_works() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("python", "pass");
    assert_runs(&server, &session, "rm -rf .venv");
    assert_runs(&server, &session, "python3 -c 'print(1)'");
    assert_eq!(server.execute(&session, "import json; 1")["result"], "1");
    // A new interpreter starts without the environment as well.
    server.execute(&session, "import os; os._exit(1)");
    assert_eq!(server.execute(&session, "1 + 1")["result"], "2");
}

#[test]
fn pythonpath_of_a_template_is_used_by_code_and_commands() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("ringfence.toml");
    let text = "[templates.given]\nlanguage = \"python\"\nenv = { PYTHONPATH = \"/workspace/given\" }\n";
    fs::write(&config, text).expect("write the configuration");
    let config = config.display().to_string();
    for pool in ["python=1,given=1", "python=0"] {
        let server = Server::start_as(User::Root, &["--config", &config], &[("RINGFENCE_SESSIONS_POOL", pool)]);
        let session = server.create_session("given", "pass");
        assert_runs(&server, &session, "mkdir given && echo 'answer = 42' > given/helper.py");
        assert_runs(&server, &session, "python -c 'import helper'");
        assert_eq!(server.execute(&session, "import helper; helper.answer")["result"], "42", "{pool}");
        assert_eq!(server.execute(&session, "import sys; sys.path[1]")["result"], "'/workspace/given'", "{pool}");
    }
}

/// A configuration with a template `built` that has these packages.
fn template_file(directory: &TempDir, packages: &[&str]) -> String {
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("set the mode");
    let path = directory.path().join("ringfence.toml");
    fs::write(&path, format!("[templates.built]\nlanguage = \"python\"\npackages = {packages:?}\n")).expect("write");
    path.display().to_string()
}

fn template_command(user: User, cache: &Path, state: &Path, wheels: &str, arguments: &[&str]) -> Output {
    let mut command = user.ringfence();
    command.arg("template").args(arguments);
    command.env("RINGFENCE_CACHE_DIR", cache).env("RINGFENCE_STATE_DIR", state);
    command.env("PIP_FIND_LINKS", wheels).env("PIP_NO_INDEX", "1");
    command.output().expect("run the command")
}

#[test]
fn packages_of_a_template_are_built_once_and_imported() {
    let test = "packages_of_a_template_are_built_once_and_imported";
    let (wheels, directory) = (wheels(), tempfile::tempdir().expect("a directory"));
    let wheels = wheels.path().display().to_string();
    let config = template_file(&directory, &["example-one == 1.*"]);
    for_each_user(test, |user| {
        let (cache, state) = (user.directory(), user.directory());
        let template = |arguments: &[&str]| {
            let output = template_command(user, cache.path(), state.path(), &wheels, arguments);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            (output.status.success(), text(&output.stdout), text(&output.stderr))
        };
        let (_, listed, _) = template(&["list", "--json", "--config", &config]);
        let state_of = |listed: &str| {
            let listed: Value = serde_json::from_str(listed).expect("JSON");
            let found = listed.as_array().and_then(|list| list.iter().find(|entry| entry["name"] == "built").cloned());
            found.unwrap_or_default()
        };
        let expected = json!({
            "name": "built", "language": "python", "packages": ["example-one==1.*"], "state": "not built",
        });
        assert_eq!(state_of(&listed), expected, "{user:?}");

        let variables = [
            ("RINGFENCE_CACHE_DIR", cache.path().to_str().expect("UTF-8")),
            ("PIP_FIND_LINKS", wheels.as_str()),
            ("PIP_NO_INDEX", "1"),
        ];
        let server = Server::start_as(user, &["--config", &config], &variables);
        // A build on a slow host may take longer than the timeout of a call.
        let import = json!({"template": "built", "code": "import example_one; example_one.__file__", "timeout": 60});
        let response = server.call("execute_code", &import);
        if response.to_string().contains("neither pip nor uv") {
            skip(test, "the Python of this host has no pip");
            return;
        }
        let fields = &response["result"]["structuredContent"];
        let file = fields["result"].as_str().unwrap_or_default();
        assert!(file.starts_with("'/run/ringfence/packages/"), "{user:?}: {response}");
        let session = fields["session_id"].as_str().unwrap_or_default();
        assert_runs(&server, session, "python -c 'import example_one'");
        let compiled = "test -e \"$(python -c 'import example_one; print(example_one.__cached__)')\"";
        assert_runs(&server, session, compiled);
        let written = run(&server, session, "touch \"$(python -c 'import example_one; print(example_one.__file__)')\"");
        assert_ne!(written["exit_code"], 0, "{user:?}: the packages are read-only");
        assert_runs(&server, session, "test ! -e .venv/lib/python3.*/site-packages/example_one.py");
        let plain = server.create_session("python", "pass");
        assert!(traceback(&server.execute(&plain, "import example_one")).contains("ModuleNotFoundError"), "{user:?}");

        let (_, listed, _) = template(&["list", "--json", "--config", &config]);
        assert_eq!(state_of(&listed)["state"], "ready", "{user:?}");
        let (success, output, _) = template(&["build", "built", "--config", &config]);
        assert_eq!((success, output.as_str()), (true, "template built was built already\n"), "{user:?}");
    });
}

#[test]
fn template_that_cannot_be_built_names_the_package_and_the_cause() {
    let test = "template_that_cannot_be_built_names_the_package_and_the_cause";
    let (wheels, directory, other) = (wheels(), tempfile::tempdir().expect("a directory"), User::Root.directory());
    let wheels = wheels.path().display().to_string();
    let config = template_file(&directory, &["example-two", "no-such-package"]);
    let build = ["build", "built", "--config", &config];
    let output = template_command(User::Root, other.path(), other.path(), &wheels, &build);
    let text = String::from_utf8_lossy(&output.stderr);
    if text.contains("neither pip nor uv") {
        skip(test, "the Python of this host has no pip");
        return;
    }
    assert!(!output.status.success() && text.contains("cannot build template built"), "{text}");
    assert!(text.contains("no-such-package"), "{text}");
    let variables = [
        ("RINGFENCE_CACHE_DIR", other.path().to_str().expect("UTF-8")),
        ("PIP_FIND_LINKS", wheels.as_str()),
        ("PIP_NO_INDEX", "1"),
    ];
    let server = Server::start(&["--config", &config], &variables);
    let response = server.call("execute_code", &json!({"template": "built", "code": "1", "timeout": 60})).to_string();
    assert!(response.contains("the packages of template built cannot be installed"), "{response}");
    assert!(response.contains("no-such-package"), "{response}");
    let unknown = template_command(User::Root, other.path(), other.path(), &wheels, &["build", "absent"]);
    let text = String::from_utf8_lossy(&unknown.stderr);
    assert!(text.contains("unknown template `absent`"), "{text}");
}

#[test]
fn node_session_imports_what_npm_installs() {
    let server = Server::start(&[], &[]);
    let session = server.create_session("node", "1");
    let missing = server.execute(&session, "await import('later')");
    let hint = "hint: run `npm install later` with execute_command";
    assert!(traceback(&missing).trim_end().ends_with(hint), "{missing}");
    if run(&server, &session, "npm --version")["exit_code"] != 0 {
        skip("node_session_imports_what_npm_installs", "this host has no npm");
        return;
    }
    let package = "mkdir -p /tmp/later && cd /tmp/later && echo 'module.exports = 42' > index.js && echo 'echo installed' > tool && \
                   chmod +x tool && echo '{\"name\": \"later\", \"version\": \"1.0.0\", \"bin\": \"./tool\"}' > package.json";
    assert_runs(&server, &session, package);
    assert_runs(&server, &session, "npm install --offline --install-links /tmp/later");
    assert_eq!(server.execute(&session, "(await import('later')).default")["result"], "42");
    assert_eq!(server.execute(&session, "require('later')")["result"], "42");
    assert_eq!(assert_runs(&server, &session, "later")["stdout"], "installed\n");
    assert_runs(&server, &session, "npm install --offline --install-links --global /tmp/later");
}
