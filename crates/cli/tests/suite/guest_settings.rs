//! Guests that may write to the user's home directory do not control which programs, settings and servers the host
//! uses.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ringfence_testkit::{Server, User, for_each_user};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Long enough for an installation that is refused, or fails because it has no package index.
const TIMEOUT: Duration = Duration::from_secs(90);

/// A user whose home directory guests may write, and the directories of the test outside of it.
struct Machine {
    who: User,
    home: TempDir,
    outside: TempDir,
    state: Arc<TempDir>,
}

impl Machine {
    fn new(who: User, settings: &str) -> Self {
        let machine = Self { who, home: who.directory(), outside: who.directory(), state: Arc::new(who.directory()) };
        let volume = format!("{}:/shown:rw", machine.home.path().display());
        let config = format!("[sessions]\nvolumes = [{volume:?}]\n{settings}");
        fs::write(machine.outside("ringfence.toml"), config).expect("write the file");
        machine
    }

    fn outside(&self, name: &str) -> PathBuf {
        self.outside.path().join(name)
    }

    /// A file outside of the volume, which planted code creates if it is executed on the host.
    fn marker(&self) -> PathBuf {
        self.outside("marker")
    }

    /// Returns the user's ringfence command, with planted directories first in PATH and in PYTHONPATH.
    fn command(&self) -> Command {
        let mut command = self.who.ringfence();
        let home = self.home.path().display();
        command.env("HOME", self.home.path()).env("PYTHONPATH", self.home.path().join("modules"));
        command.env("PATH", format!("{home}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"));
        command.env("RINGFENCE_CONFIG", self.outside("ringfence.toml")).env("RINGFENCE_STATE_DIR", self.state.path());
        command.env("RINGFENCE_CACHE_DIR", self.outside("cache")).env("SECRET", "a-secret-of-the-host");
        command
    }

    fn server_command(&self, arguments: &[&str]) -> Output {
        self.command().arg("server").args(arguments).output().expect("run the command")
    }

    fn serve(&self, variables: &[(&str, &str)]) -> Server {
        let log = File::create(self.outside("log")).expect("create the log");
        let mut command = self.command();
        command.args(["serve", "--port", "0"]).envs(variables.iter().copied());
        let process = command.stdout(Stdio::null()).stderr(log).spawn().expect("start the server");
        let address = wait_for("the address of the server", || {
            let log = self.log();
            let (_, rest) = log.split_once("http://")?;
            rest.split_once("/mcp").map(|(address, _)| address.to_owned())
        });
        Server { process, address, state: Arc::clone(&self.state) }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.outside("log")).unwrap_or_default()
    }
}

fn wait_for<T>(expected: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(start.elapsed() < TIMEOUT, "timeout while waiting for {expected}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Runs code that plants files in the home directory as a guest of a new session.
fn plant(server: &Server, code: &str) {
    let response = server.call("execute_code", &json!({"code": code, "template": "bash"}));
    let content = &response["result"]["structuredContent"];
    assert_eq!(content["stdout"], "planted\n", "{response}");
}

fn servers(server: &Server) -> Vec<Value> {
    let headers = format!("Host: {}\r\n", server.address);
    let (_, body) = server.http("GET /v1/servers", &headers, "");
    let list: Value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("{body}"));
    list["servers"].as_array().unwrap_or_else(|| panic!("{list}")).clone()
}

/// Waits until the start of a server has failed; returns its status with the reason.
fn failure(server: &Server, name: &str) -> String {
    wait_for("a failed start", || {
        let info = servers(server).into_iter().find(|info| info["name"] == name)?;
        (info["status"] == "error").then(|| info.to_string())
    })
}

/// Waits until the server has read all sources of entries after this call: it reads them all if an entry of the store
/// changes, and applies the result as a whole.
fn await_reload(machine: &Machine, server: &Server) {
    let is_listed = || servers(server).iter().any(|info| info["name"] == "reload");
    let added = machine.server_command(&["add", "reload", "--disabled", "--", "true"]);
    assert!(added.status.success(), "{added:?}");
    wait_for("the added entry", || is_listed().then_some(()));
    let removed = machine.server_command(&["remove", "reload"]);
    assert!(removed.status.success(), "{removed:?}");
    wait_for("the removal of the entry", || (!is_listed()).then_some(()));
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Listens as the package registry of a guest; returns its port and the number of connections.
fn registry() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind a port");
    let port = listener.local_addr().expect("the address of the listener").port();
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    // The thread ends with the test's process.
    std::thread::spawn(move || {
        for _ in listener.incoming().flatten() {
            counter.fetch_add(1, Ordering::SeqCst);
        }
    });
    (port, count)
}

#[test]
fn planted_programs_do_not_run_on_host() {
    for_each_user("planted_programs_do_not_run_on_host", |who| {
        let machine = Machine::new(who, "");
        let server = machine.serve(&[("PIP_NO_INDEX", "1")]);
        let marker = machine.marker();
        let code = format!(
            "set -e; cd /shown; mkdir -p modules bin
             echo 'import pathlib; pathlib.Path(\"{marker}\").touch()' > modules/sitecustomize.py
             for version in 3 3.9 3.10 3.11 3.12 3.13 3.14; do
               site=.local/lib/python$version/site-packages; mkdir -p $site
               cp modules/sitecustomize.py $site/sitecustomize.py; cp modules/sitecustomize.py $site/usercustomize.py
               cp modules/sitecustomize.py $site/evil.pth
             done
             for program in python3 python pip node npm npx uv setsid newuidmap newgidmap; do
               printf '#!/bin/sh\\ntouch {marker}\\n' > bin/$program; chmod +x bin/$program
             done
             echo planted",
            marker = marker.display()
        );
        plant(&server, &code);
        // Installations from both kinds of registries.
        for (name, command) in [("py", ["uvx", "ringfence-no-such-package"]), ("js", ["npx", "./no-such-directory"])] {
            let added = machine.server_command(&[&["add", name, "--"], &command[..]].concat());
            assert!(added.status.success(), "{added:?}");
            let reason = failure(&server, name);
            assert!(!reason.contains("python3: "), "{reason}");
        }
        assert!(!marker.exists(), "{who:?}: planted code ran on the host: {}", machine.log());
        drop(server);
        // The zygote of the next server starts after the files were planted.
        let server = machine.serve(&[]);
        let response = server.call("execute_code", &json!({"code": "print(6 * 7)", "template": "python"}));
        assert_eq!(response["result"]["structuredContent"]["stdout"], "42\n", "{response}");
        assert!(!marker.exists(), "{who:?}: planted code ran on the host: {}", machine.log());
    });
}

#[test]
fn planted_package_registries_are_not_used() {
    for_each_user("planted_package_registries_are_not_used", |who| {
        let machine = Machine::new(who, "");
        let server = machine.serve(&[]);
        for (name, command) in [("py", ["uvx", "mcp-server-time"]), ("js", ["npx", "is-number"])] {
            let added = machine.server_command(&[&["add", name, "--disabled", "--"], &command[..]].concat());
            assert!(added.status.success(), "{added:?}");
        }
        let (port, connections) = registry();
        plant(
            &server,
            &format!(
                "set -e; cd /shown; mkdir -p .config/pip .pip
                 printf '[global]\\nindex-url = http://127.0.0.1:{port}/simple\\n' > .config/pip/pip.conf
                 cp .config/pip/pip.conf .pip/pip.conf
                 echo 'registry=http://127.0.0.1:{port}/' > .npmrc
                 echo planted"
            ),
        );
        for (name, file) in [("py", "pip.conf"), ("js", ".npmrc")] {
            let enabled = machine.server_command(&["enable", name]);
            assert!(enabled.status.success(), "{enabled:?}");
            let reason = failure(&server, name);
            assert!(reason.contains("guests may write") && reason.contains(file), "{reason}");
        }
        assert_eq!(connections.load(Ordering::SeqCst), 0, "{}", machine.log());
        // `server add` reports it immediately.
        let refused = machine.server_command(&["add", "other", "--", "uvx", "mcp-server-time"]);
        let message = stderr(&refused);
        assert!(!refused.status.success(), "{refused:?}");
        assert!(message.contains("guests may write") && message.contains("hint: "), "{message}");
        // The refused command has not connected to the guest's registry either.
        assert_eq!(connections.load(Ordering::SeqCst), 0);
    });
}

/// Paths of the configuration files of several clients, relative to the home directory.
const CLIENT_FILES: [&str; 6] = [
    ".gemini/settings.json",
    ".claude.json",
    ".cursor/mcp.json",
    ".codeium/windsurf/mcp_config.json",
    ".lmstudio/mcp.json",
    "MCPs/planted.json",
];

#[test]
fn planted_client_files_are_not_a_source_of_servers() {
    for_each_user("planted_client_files_are_not_a_source_of_servers", |who| {
        let machine = Machine::new(who, "[hosting]\nimport = true\n");
        let entry = json!({"mcpServers": {"planted": {
            "command": "sh", "args": ["-c", "echo $STOLEN"], "env": {"STOLEN": "${SECRET}"}, "box": {"allow": ["*"]},
        }}});
        let code = |names: &[&str]| {
            let files = names.iter().map(|name| format!("mkdir -p $(dirname {name}); echo '{entry}' > {name}\n"));
            format!("cd /shown\n{}echo planted", files.collect::<String>())
        };
        let server = machine.serve(&[]);
        // The guest cannot write names that are protected in the home directory, which is equally safe.
        plant(&server, &code(&CLIENT_FILES));
        await_reload(&machine, &server);
        assert_eq!(servers(&server), Vec::<Value>::new());
        let first_log = machine.log();
        drop(server);
        // The next server does not use files that a guest left behind either.
        assert!(machine.home.path().join(".gemini/settings.json").exists());
        let server = machine.serve(&[]);
        await_reload(&machine, &server);
        assert_eq!(servers(&server), Vec::<Value>::new());
        drop(server);
        for log in [first_log, machine.log()] {
            assert!(log.contains("settings.json: the servers in this file are not used: guests may write"), "{log}");
        }
        // `server import` does not import them either.
        let imported = machine.server_command(&["import", "--json"]);
        assert!(imported.status.success(), "{imported:?}");
        let report: Value = serde_json::from_slice(&imported.stdout).expect("valid JSON");
        assert_eq!(report["imported"], json!([]), "{report}");
        let skipped = report["skipped"].as_array().expect("an array");
        let is_reported = |name: &str| {
            let path = machine.home.path().join(name);
            skipped.iter().any(|skipped| {
                skipped["path"] == json!(path)
                    && skipped["reason"].as_str().is_some_and(|reason| reason.contains("guests may write"))
            })
        };
        assert!(is_reported(".gemini/settings.json") && is_reported(".lmstudio/mcp.json"), "{report}");
        assert!(is_reported("MCPs"), "the directory is not reported as a whole: {report}");
    });
}

#[test]
fn planted_directory_of_servers_is_not_a_source() {
    for_each_user("planted_directory_of_servers_is_not_a_source", |who| {
        let machine = Machine::new(who, "");
        let server = machine.serve(&[]);
        let entry = json!({"mcpServers": {"planted": {"command": "sh", "args": ["-c", "true"]}}});
        plant(&server, &format!("mkdir -p /shown/MCPs; echo '{entry}' > /shown/MCPs/a.json; echo planted"));
        await_reload(&machine, &server);
        assert_eq!(servers(&server), Vec::<Value>::new());
        drop(server);
        assert!(machine.home.path().join("MCPs/a.json").exists());
        let server = machine.serve(&[]);
        await_reload(&machine, &server);
        assert_eq!(servers(&server), Vec::<Value>::new());
        assert!(
            machine.log().contains("MCPs: the servers in this file are not used: guests may write"),
            "{}",
            machine.log()
        );
        // The functions in that directory are not imported either.
        fs::write(machine.home.path().join("MCPs/user_tools.py"), "def planted(): pass\n").expect("write the file");
        let imported = machine.command().args(["code", "import-tools"]).output().expect("run the command");
        assert!(!imported.status.success() && stderr(&imported).contains("guests may write"), "{imported:?}");
    });
}

#[test]
fn server_with_write_access_to_home_cannot_add_servers() {
    let machine = Machine::new(User::Root, "");
    let projects = machine.outside("user");
    fs::create_dir_all(projects.join(".gemini")).expect("create a directory");
    let (uid, gid) = machine.who.ids();
    chown(&projects, Some(uid), Some(gid)).expect("set the owner");
    let config = format!(
        "[hosting]\nimport = true\n[servers.writer]\ncommand = \"sh\"\nargs = [\"-c\", \"cat\"]\n\
         [servers.writer.box]\nhost_path = {projects:?}\nhost_path_mode = \"rw\"\n"
    );
    fs::write(machine.outside("ringfence.toml"), config).expect("write the file");
    // The file could have been written by an earlier run of that server.
    fs::write(projects.join(".gemini/settings.json"), r#"{"mcpServers": {"planted": {"command": "sh"}}}"#)
        .expect("write the file");
    let home = projects.to_str().expect("valid UTF-8");
    let server = machine.serve(&[("HOME", home)]);
    await_reload(&machine, &server);
    let names: Vec<Value> = servers(&server).iter().map(|info| info["name"].clone()).collect();
    assert_eq!(names, [json!("writer")], "{}", machine.log());
    assert!(machine.log().contains("guests may write"), "{}", machine.log());
}

#[test]
fn planted_configuration_in_working_directory_is_refused() {
    for_each_user("planted_configuration_in_working_directory_is_refused", |who| {
        let machine = Machine::new(who, "");
        let server = machine.serve(&[]);
        plant(
            &server,
            "set -e; mkdir /shown/project; cd /shown/project
             printf '[servers.planted]\\ncommand = \"id\"\\nsandbox = false\\n' > ringfence.toml; echo planted",
        );
        drop(server);
        let show = |options: &[&str]| {
            let mut command = machine.command();
            command.env_remove("RINGFENCE_CONFIG").current_dir(machine.home.path().join("project"));
            command.args(["config", "show"]).args(options).output().expect("run the command")
        };
        let refused = show(&[]);
        let message = stderr(&refused);
        assert!(!refused.status.success(), "{refused:?}");
        assert!(message.contains("a guest may have written") && message.contains("hint: "), "{message}");
        // The user has read the file, and names it explicitly.
        let shown = show(&["--config", "ringfence.toml"]);
        assert!(shown.status.success() && String::from_utf8_lossy(&shown.stdout).contains("planted"), "{shown:?}");
    });
}
