//! Files in volumes that guests must not change: ringfence's state, and all files that define what runs on the host.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use ringfence_testkit::{Server, User, fixture_path, for_each_user, wait_until};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::fixture::{Fixture, rest, run, text};

/// Tries to list, move, remove and recreate `/shown/.local/state/ringfence`.
const ATTACK_STATE: &str = "cd /shown && ls -A .local/state/ringfence; echo x > .local/state/ringfence/planted; \
                         mv .local moved; mv .local/state .local/moved; rm -rf .local/state/ringfence; \
                         echo mine > .local/mine && echo mine > mine && cat .local/mine";

fn create_directory(user: User, path: &Path) {
    let (uid, gid) = user.ids();
    fs::create_dir(path).expect("directory is created");
    chown(path, Some(uid), Some(gid)).expect("owner is set");
}

#[test]
fn state_directory_is_empty_for_guests_of_a_home_volume() {
    for_each_user("state_directory_is_empty_for_guests_of_a_home_volume", |user| {
        let home = user.directory();
        for below in [".local", ".local/state"] {
            create_directory(user, &home.path().join(below));
        }
        let state = home.path().join(".local/state/ringfence");
        let state_path = text(&state);
        for access in ["ro", "rw"] {
            let volume = format!("--volume={}:/shown:{access}", home.path().display());
            let server =
                Server::start_in(user, Arc::new(user.directory()), &[&volume], &[("RINGFENCE_STATE_DIR", &state_path)]);
            let before = entries(&state);
            assert!(before.contains(&"launchers".into()), "{before:?}");
            let result = run(&server, "bash", ATTACK_STATE);
            let expected = if access == "rw" { "mine\n" } else { "" };
            assert_eq!(result["stdout"], expected, "{access}: {result}");
            assert_eq!(entries(&state), before, "{access}: {result}");
            assert_eq!(home.path().join("mine").exists(), access == "rw");
        }
        // `ringfence run` protects it in the same way.
        let mut command = user.ringfence();
        let volume = format!("{}:/shown:rw", home.path().display());
        command.args(["run", "-v", &volume, "--", "sh", "-c", ATTACK_STATE]).env("RINGFENCE_STATE_DIR", &state);
        let output = command.output().expect("command runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "mine\n", "{output:?}");
        assert!(state.join("launchers").is_dir() && !state.join("planted").exists());
    });
}

fn entries(directory: &Path) -> Vec<String> {
    let found = fs::read_dir(directory).expect("directory exists").flatten();
    let mut names: Vec<String> = found.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    // The journals of the database are temporary files.
    names.retain(|name| !name.ends_with("-wal") && !name.ends_with("-shm"));
    names.sort();
    names
}

#[test]
fn volume_inside_the_state_directory_is_refused() {
    let fixture = Fixture::new(User::Root);
    fs::create_dir(fixture.state.path().join("below")).expect("directory is created");
    for below in ["", "below"] {
        let volume = format!("--volume={}:/shown:ro", fixture.state.path().join(below).display());
        let stderr = fixture.failed_serve(&[&volume]);
        assert!(stderr.contains("a directory of ringfence") && stderr.contains("hint: "), "{stderr}");
    }
}

fn server_state() -> Arc<TempDir> {
    Arc::new(User::Root.directory())
}

fn serve_command(directory: &Path, options: &[&str], state: &TempDir) -> Command {
    let mut command = User::Root.ringfence();
    command.args(["serve", "--port", "0"]).args(options).env("RINGFENCE_STATE_DIR", state.path());
    command.current_dir(directory).stdout(Stdio::null());
    command
}

/// Starts a server in a directory.
fn serve_in(directory: &Path, options: &[&str]) -> Server {
    let state = server_state();
    let mut process = serve_command(directory, options, &state).spawn().expect("process starts");
    let mut lines = BufReader::new(process.stderr.take().expect("stderr is piped")).lines();
    let address = lines.by_ref().map(|line| line.expect("valid UTF-8")).find_map(|line| {
        let (_, rest) = line.split_once("http://")?;
        rest.strip_suffix("/mcp").map(ToOwned::to_owned)
    });
    std::thread::spawn(move || lines.count());
    Server { process, address: address.expect("address is printed"), state }
}

/// Returns the names of the servers that are listed.
fn servers(server: &Server) -> Vec<String> {
    let (_, list) = rest(server, "GET /v1/servers", &Value::Null);
    let servers = list["servers"].as_array().unwrap_or_else(|| panic!("no servers: {list}")).iter();
    servers.filter_map(|info| info["name"].as_str()).map(str::to_owned).collect()
}

/// Waits until the server has read its sources again, and returns the names of the servers that are listed then.
///
/// Each time, the server reads the store first and the files after it. When it lists an entry that was added to the store
/// after a file was changed, it has also read that file, if it reads the file at all.
fn servers_after_reload(server: &Server) -> Vec<String> {
    const BARRIER: &str = "barrier";
    let mut add = User::Root.ringfence();
    add.args(["server", "add", BARRIER, "--disabled", "--", "no-such-program"]);
    let output = add.env("RINGFENCE_STATE_DIR", server.state.path()).output().expect("command runs");
    assert!(output.status.success(), "{output:?}");
    let mut names = Vec::new();
    wait_until("the server does not read its sources again", || {
        names = servers(server);
        names.iter().any(|name| name == BARRIER)
    });
    names.retain(|name| name != BARRIER);
    names
}

const PLANTED: &str = "[servers.planted]\ncommand = \"id\"\nsandbox = false\n";

/// The control of the tests below: they would see a configuration that is applied.
#[test]
fn changed_configuration_outside_of_volumes_is_applied() {
    let fixture = Fixture::new(User::Root);
    let config = fixture.config("");
    let server = serve_in(Path::new("/"), &["--config", &config]);
    fs::write(&config, PLANTED).expect("file is written");
    assert_eq!(servers_after_reload(&server), ["planted"]);
}

#[test]
fn configuration_written_by_guests_is_not_applied() {
    let fixture = Fixture::new(User::Root);
    let project = fixture.path("root/project");
    let volume = format!("--volume={}:/shown:rw", project.display());
    let server = serve_in(&project, &[&volume]);
    let result = run(&server, "bash", &format!("echo made > /shown/made; printf '{PLANTED}' > /shown/ringfence.toml"));
    assert_eq!(fs::read_to_string(project.join("made")).expect("file is on the host"), "made\n", "{result}");
    assert_eq!(servers_after_reload(&server), [""; 0]);
    drop(server);
    let notices = result["notices"].to_string();
    assert!(notices.contains("/shown/ringfence.toml was created in a volume"), "{result}");
    fs::remove_file(project.join("ringfence.toml")).expect("the guest could create it");
    // In a subdirectory of a volume, the creation of the file is not detected: if it does not exist, a guest could create it
    // for the next server, so the start is refused.
    let mut command = serve_command(&project.join("work"), &[&volume], &server_state());
    let output = command.output().expect("command runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("guests could create") && stderr.contains("work/ringfence.toml"), "{stderr}");
    assert!(!output.status.success());
    // If it exists, a change on the host is not applied either.
    fs::write(project.join("work/ringfence.toml"), "").expect("file is written");
    let server = serve_in(&project.join("work"), &[&volume]);
    fs::write(project.join("work/ringfence.toml"), PLANTED).expect("file is written");
    assert_eq!(servers_after_reload(&server), [""; 0]);
}

#[test]
fn configuration_in_a_volume_cannot_be_written_or_moved() {
    let fixture = Fixture::new(User::Root);
    let (project, config) = (fixture.path("root/project"), fixture.path("root/project/work/settings.toml"));
    fs::write(&config, "[servers.configured]\ncommand = \"python3\"\nargs = [\"-c\", \"\"]\n")
        .expect("file is written");
    let volume = format!("--volume={}:/shown:rw", project.display());
    let server = serve_in(Path::new("/"), &["--config", &text(&config), &volume]);
    let attack =
        "cd /shown; echo >> work/settings.toml; rm -f work/settings.toml; mv work moved; echo y > work/y; ls work";
    assert_eq!(run(&server, "bash", attack)["stdout"], "settings.toml\ny\n");
    assert!(fs::read_to_string(&config).expect("file exists").starts_with("[servers.configured]"));
    // A change on the host, where an editor may have replaced the file by another one, is applied at the next start.
    fs::write(&config, PLANTED).expect("file is written");
    assert_eq!(servers_after_reload(&server), ["configured"]);
}

/// Returns the error of a call to a server whose entry is refused.
fn call_error(config: &str, entry: &str, options: &[&str]) -> String {
    fs::write(config, entry).expect("file is written");
    let server = serve_in(Path::new("/"), &[&["--config", config], options].concat());
    let response = server.call("tools__echo", &json!({"message": "hello"}));
    response["error"]["message"].as_str().unwrap_or_else(|| panic!("the server starts: {response}")).to_owned()
}

/// Returns the program of a server, and a function that writes an entry for it.
fn program(fixture: &Fixture) -> (PathBuf, impl Fn(&str) -> String) {
    let program = fixture.path("root/project/code_server.py");
    fs::copy(fixture_path("code_server.py"), &program).expect("fixture is copied");
    let args = text(&program);
    let entry = move |more: &str| {
        format!("[servers.tools]\ncommand = \"python3\"\nargs = [{args:?}]\n[servers.tools.box]\n{more}")
    };
    (program, entry)
}

#[test]
fn configuration_written_by_a_hosted_server_is_not_applied() {
    let fixture = Fixture::new(User::Root);
    let (program, entry) = program(&fixture);
    let code = fs::read_to_string(&program).expect("file exists");
    let plant = format!(
        "import os\nopen(os.path.dirname(__file__) + '/made', 'w').close()\ntry:\n    \
         open(os.path.dirname(__file__) + '/ringfence.toml', 'a').write({PLANTED:?})\nexcept OSError:\n    pass\n"
    );
    fs::write(&program, plant + &code).expect("file is written");
    let config = text(&fixture.path("root/project/ringfence.toml"));
    let content = entry("host_path_mode = \"rw\"\n");
    fs::write(&config, &content).expect("file is written");
    let server = serve_in(Path::new("/"), &["--config", &config]);
    let response = server.call("tools__echo", &json!({"message": "hello"}));
    assert_eq!(response["result"]["content"][0]["text"], "hello", "{response}");
    assert!(fixture.path("root/project/made").exists(), "the server can write other files");
    assert_eq!(fs::read_to_string(&config).expect("file exists"), content);
    fs::write(&config, format!("{content}{PLANTED}")).expect("file is written");
    assert_eq!(servers_after_reload(&server), ["tools"]);
}

#[test]
fn root_file_system_writable_by_guests_is_refused() {
    let fixture = Fixture::new(User::Root);
    let (_, entry) = program(&fixture);
    let outside = text(&fixture.path("ringfence.toml"));
    std::os::unix::fs::symlink("/", fixture.path("root/everything")).expect("symbolic link is created");
    for image in [Path::new("/"), &fixture.path("root/everything")] {
        let error = call_error(&outside, &entry(&format!("image = {image:?}\n")), &[]);
        assert!(error.contains("the root directory of the host"), "{error}");
    }
    let image = fixture.path("root/project/work");
    let volume = format!("--volume={}:/shown:rw", fixture.path("root/project").display());
    let error = call_error(&outside, &entry(&format!("image = {image:?}\n")), &[&volume]);
    assert!(error.contains("guests may write"), "{error}");
    fs::write(&outside, format!("[templates.odd]\nlanguage = \"bash\"\nroot = {image:?}\n")).expect("file is written");
    let stderr = fixture.failed_serve(&["--config", &outside, &volume]);
    assert!(stderr.contains("templates.odd.root") && stderr.contains("guests may write"), "{stderr}");
}

#[test]
fn scope_file_writable_by_guests_is_refused() {
    let fixture = Fixture::new(User::Root);
    let scope = fixture.scope(&json!({"allowed_roots": [fixture.path("")]}));
    let stderr =
        fixture.failed_serve(&["--scope", &scope, &format!("--volume={}:/shown:rw", fixture.path("").display())]);
    assert!(stderr.contains("is in a volume that guests may write") && stderr.contains("hint: "), "{stderr}");
}
