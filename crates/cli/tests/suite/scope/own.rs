//! What is ringfence's own, and what says what is started on the host, in volumes that show it.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ringfence_testkit::{Server, User, fixture_path, for_each_user};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::desk::{Desk, rest, run, text};

/// Several times as long as changes of files take to be seen.
const LONG_ENOUGH: Duration = Duration::from_secs(3);

/// Tries to see, to take away and to make again what lies at `/shown/.local/state/ringfence`.
const TRY_STATE: &str = "cd /shown && ls -A .local/state/ringfence; echo x > .local/state/ringfence/planted; \
                         mv .local aside; mv .local/state .local/aside; rm -rf .local/state/ringfence; \
                         echo mine > .local/mine && echo mine > mine && cat .local/mine";

fn make(who: User, path: &Path) {
    let (uid, gid) = who.ids();
    fs::create_dir(path).expect("a directory");
    chown(path, Some(uid), Some(gid)).expect("its owner is set");
}

#[test]
fn the_state_of_servers_is_not_there_for_guests_of_a_home() {
    for_each_user("the_state_of_servers_is_not_there_for_guests_of_a_home", |who| {
        let home = who.directory();
        for below in [".local", ".local/state"] {
            make(who, &home.path().join(below));
        }
        let state = home.path().join(".local/state/ringfence");
        let named = text(&state);
        for access in ["ro", "rw"] {
            let volume = format!("--volume={}:/shown:{access}", home.path().display());
            let server =
                Server::start_in(who, Arc::new(who.directory()), &[&volume], &[("RINGFENCE_STATE_DIR", &named)]);
            let before = names(&state);
            assert!(before.contains(&"launchers".into()), "{before:?}");
            let ran = run(&server, "bash", TRY_STATE);
            let expected = if access == "rw" { "mine\n" } else { "" };
            assert_eq!(ran["stdout"], expected, "{access}: {ran}");
            assert_eq!(names(&state), before, "{access}: {ran}");
            assert_eq!(home.path().join("mine").exists(), access == "rw");
        }
        // The same for a single command.
        let mut command = who.ringfence();
        let volume = format!("{}:/shown:rw", home.path().display());
        command.args(["run", "-v", &volume, "--", "sh", "-c", TRY_STATE]).env("RINGFENCE_STATE_DIR", &state);
        let output = command.output().expect("it runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "mine\n", "{output:?}");
        assert!(state.join("launchers").is_dir() && !state.join("planted").exists());
    });
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("it is there").flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    // Journals of the database come and go.
    names.retain(|name| !name.ends_with("-wal") && !name.ends_with("-shm"));
    names.sort();
    names
}

#[test]
fn a_volume_in_the_state_or_the_packages_is_refused() {
    let desk = Desk::of(User::Root);
    fs::create_dir(desk.state.path().join("below")).expect("a directory");
    for below in ["", "below"] {
        let volume = format!("--volume={}:/shown:ro", desk.state.path().join(below).display());
        let said = desk.refusal(&[&volume]);
        assert!(said.contains("a directory of ringfence") && said.contains("hint: "), "{said}");
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

/// A server that is started in a directory.
fn serve_in(directory: &Path, options: &[&str]) -> Server {
    let state = server_state();
    let mut process = serve_command(directory, options, &state).spawn().expect("it starts");
    let mut lines = BufReader::new(process.stderr.take().expect("stderr is piped")).lines();
    let address = lines.by_ref().map(|line| line.expect("it is text")).find_map(|line| {
        let (_, rest) = line.split_once("http://")?;
        rest.strip_suffix("/mcp").map(ToOwned::to_owned)
    });
    std::thread::spawn(move || lines.count());
    Server { process, address: address.expect("it says where it listens"), state }
}

fn servers(server: &Server) -> Vec<String> {
    let (_, told) = rest(server, "GET /v1/servers", &Value::Null);
    let all = told["servers"].as_array().unwrap_or_else(|| panic!("no servers: {told}")).iter();
    all.filter_map(|info| info["name"].as_str()).map(str::to_owned).collect()
}

const PLANTED: &str = "[servers.planted]\ncommand = \"id\"\nsandbox = false\n";

#[test]
fn what_guests_write_into_the_directory_of_a_server_is_not_obeyed() {
    let desk = Desk::of(User::Root);
    let project = desk.path("root/project");
    let volume = format!("--volume={}:/shown:rw", project.display());
    let server = serve_in(&project, &[&volume]);
    let ran = run(&server, "bash", &format!("echo made > /shown/made; printf '{PLANTED}' > /shown/ringfence.toml"));
    assert_eq!(fs::read_to_string(project.join("made")).expect("it is on the host"), "made\n", "{ran}");
    std::thread::sleep(LONG_ENOUGH);
    assert_eq!(servers(&server), [""; 0]);
    drop(server);
    let said = ran["notices"].to_string();
    assert!(said.contains("/shown/ringfence.toml was created in a volume"), "{ran}");
    fs::remove_file(project.join("ringfence.toml")).expect("the guest could create it");
    // Deeper down its creation is not noticed: where it is missing, a guest could make it for the next server.
    let mut refused = serve_command(&project.join("work"), &[&volume], &server_state());
    let output = refused.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("guests could create") && said.contains("work/ringfence.toml"), "{said}");
    assert!(!output.status.success());
    // Nor what is written there on the host.
    fs::write(project.join("work/ringfence.toml"), "").expect("it is written");
    let server = serve_in(&project.join("work"), &[&volume]);
    fs::write(project.join("work/ringfence.toml"), PLANTED).expect("it is written");
    std::thread::sleep(LONG_ENOUGH);
    assert_eq!(servers(&server), [""; 0]);
}

#[test]
fn a_configuration_in_a_volume_cannot_be_written_or_moved_away() {
    let desk = Desk::of(User::Root);
    let (project, config) = (desk.path("root/project"), desk.path("root/project/work/settings.toml"));
    fs::write(&config, "[servers.own]\ncommand = \"python3\"\nargs = [\"-c\", \"\"]\n").expect("it is written");
    let volume = format!("--volume={}:/shown:rw", project.display());
    let server = serve_in(Path::new("/"), &["--config", &text(&config), &volume]);
    let tries =
        "cd /shown; echo >> work/settings.toml; rm -f work/settings.toml; mv work aside; echo y > work/y; ls work";
    assert_eq!(run(&server, "bash", tries)["stdout"], "settings.toml\ny\n");
    assert!(fs::read_to_string(&config).expect("it is there").starts_with("[servers.own]"));
    // Changed on the host, where an editor may have put another file in its place, it counts at the next start.
    fs::write(&config, PLANTED).expect("it is written");
    std::thread::sleep(LONG_ENOUGH);
    assert_eq!(servers(&server), ["own"]);
}

/// The reason for which an entry's server does not start.
fn refusal(config: &str, entry: &str, options: &[&str]) -> String {
    fs::write(config, entry).expect("it is written");
    let server = serve_in(Path::new("/"), &[&["--config", config], options].concat());
    let answer = server.call("tools__echo", &json!({"message": "heard"}));
    answer["error"]["message"].as_str().unwrap_or_else(|| panic!("it starts: {answer}")).to_owned()
}

/// A program of a server, and an entry for it.
fn program(desk: &Desk) -> (PathBuf, impl Fn(&str) -> String) {
    let program = desk.path("root/project/code_server.py");
    fs::copy(fixture_path("code_server.py"), &program).expect("it is copied");
    let args = text(&program);
    let entry = move |more: &str| {
        format!("[servers.tools]\ncommand = \"python3\"\nargs = [{args:?}]\n[servers.tools.box]\n{more}")
    };
    (program, entry)
}

#[test]
fn what_a_server_writes_beside_itself_is_not_obeyed() {
    let desk = Desk::of(User::Root);
    let (program, entry) = program(&desk);
    let code = fs::read_to_string(&program).expect("it is there");
    let plant = format!(
        "import os\nopen(os.path.dirname(__file__) + '/made', 'w').close()\ntry:\n    \
         open(os.path.dirname(__file__) + '/ringfence.toml', 'a').write({PLANTED:?})\nexcept OSError:\n    pass\n"
    );
    fs::write(&program, plant + &code).expect("it is written");
    let config = text(&desk.path("root/project/ringfence.toml"));
    let own = entry("host_path_mode = \"rw\"\n");
    fs::write(&config, &own).expect("it is written");
    let server = serve_in(Path::new("/"), &["--config", &config]);
    let answer = server.call("tools__echo", &json!({"message": "heard"}));
    assert_eq!(answer["result"]["content"][0]["text"], "heard", "{answer}");
    assert!(desk.path("root/project/made").exists(), "it may write all else");
    assert_eq!(fs::read_to_string(&config).expect("it is there"), own);
    fs::write(&config, format!("{own}{PLANTED}")).expect("it is written");
    std::thread::sleep(LONG_ENOUGH);
    assert_eq!(servers(&server), ["tools"]);
}

#[test]
fn a_root_file_system_that_guests_could_change_is_refused() {
    let desk = Desk::of(User::Root);
    let (_, entry) = program(&desk);
    let outside = text(&desk.path("ringfence.toml"));
    std::os::unix::fs::symlink("/", desk.path("root/everything")).expect("a link");
    for image in [Path::new("/"), &desk.path("root/everything")] {
        let said = refusal(&outside, &entry(&format!("image = {image:?}\n")), &[]);
        assert!(said.contains("the root directory of the host"), "{said}");
    }
    let image = desk.path("root/project/work");
    let volume = format!("--volume={}:/shown:rw", desk.path("root/project").display());
    let said = refusal(&outside, &entry(&format!("image = {image:?}\n")), &[&volume]);
    assert!(said.contains("guests may write"), "{said}");
    fs::write(&outside, format!("[templates.odd]\nlanguage = \"bash\"\nroot = {image:?}\n")).expect("it is written");
    let said = desk.refusal(&["--config", &outside, &volume]);
    assert!(said.contains("templates.odd.root") && said.contains("guests may write"), "{said}");
}

#[test]
fn a_scope_that_guests_could_write_is_refused() {
    let desk = Desk::of(User::Root);
    let scope = desk.scope(&json!({"allowed_roots": [desk.path("")]}));
    let said = desk.refusal(&["--scope", &scope, &format!("--volume={}:/shown:rw", desk.path("").display())]);
    assert!(said.contains("is in a volume that guests may write") && said.contains("hint: "), "{said}");
}
