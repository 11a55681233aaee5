//! `ringfence secret`, and `ringfence server import --secrets`: values are stored, and are in no output.

mod import;
mod terminal;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Output, Stdio};

use ringfence_testkit::{User, for_each_user};
use serde_json::{Value, json};
use tempfile::TempDir;

const VALUE: &str = "ghp_0123456789abcdefghijklmnopqrstuvwxyz";

/// Runs a command as a user with a state directory, in that directory, with this text as standard input.
pub(crate) fn run_with(user: User, state: &TempDir, arguments: &[&str], input: Option<&str>) -> Output {
    run_in(user, state, arguments, input, &[])
}

fn run_in(user: User, state: &TempDir, arguments: &[&str], input: Option<&str>, variables: &[(&str, &str)]) -> Output {
    let mut command = user.ringfence();
    command.args(arguments).env("RINGFENCE_STATE_DIR", state.path()).env("HOME", state.path());
    command.current_dir(state.path()).envs(variables.iter().copied()).stdin(Stdio::piped());
    let mut child = command.spawn().expect("start the command");
    let mut stdin = child.stdin.take().expect("stdin is piped");
    // A command that does not read its input may have ended.
    let _ = stdin.write_all(input.unwrap_or_default().as_bytes());
    drop(stdin);
    child.wait_with_output().expect("the command ends")
}

/// Adds a secret whose value is on standard input.
pub(crate) fn add_secret(user: User, state: &TempDir, value: &str, arguments: &[&str]) -> Output {
    let output = run_with(user, state, &[&["secret", "add"], arguments].concat(), Some(value));
    assert!(output.status.success(), "{output:?}");
    assert!(!text(&output).contains(value), "{output:?}");
    output
}

/// Returns the names of the files below a directory that contain a text.
pub(crate) fn files_with(directory: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("read the directory").flatten() {
        let kind = entry.file_type().expect("the type of the file");
        if kind.is_dir() {
            found.extend(files_with(&entry.path(), text));
        } else if kind.is_file() {
            let content = fs::read(entry.path()).unwrap_or_default();
            let is_found = content.windows(text.len()).any(|part| part == text.as_bytes());
            found.extend(is_found.then(|| entry.file_name().to_string_lossy().into_owned()));
        }
    }
    found
}

/// Returns standard output and standard error.
fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

fn succeed(user: User, state: &TempDir, arguments: &[&str]) -> String {
    let output = run_with(user, state, arguments, None);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    text(&output)
}

/// Returns the standard error of a command that fails.
fn fail(state: &TempDir, arguments: &[&str], input: &str) -> String {
    let output = run_with(User::Root, state, arguments, Some(input));
    assert!(output.status.code() == Some(125) && output.stdout.is_empty(), "{arguments:?}: {output:?}");
    text(&output)
}

fn list(user: User, state: &TempDir) -> Vec<Value> {
    let output = run_with(user, state, &["secret", "list", "--json"], None);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    document["secrets"].as_array().expect("a list").clone()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("the file exists").permissions().mode() & 0o7777
}

fn write(state: &TempDir, path: &str, text: &str) {
    let path = state.path().join(path);
    fs::create_dir_all(path.parent().expect("a parent")).expect("create the directory");
    fs::write(path, text).expect("write the file");
}

#[test]
fn values_are_stored_in_a_private_file_and_in_no_output() {
    for_each_user("secret_commands::values_are_stored_in_a_private_file_and_in_no_output", |user| {
        let home = user.directory();
        let state = home.path().join("state");
        let values = [VALUE, "value-of-a-variable", "value-of-a-file"];
        write(&home, "value", &format!("{}\n", values[2]));
        let add = |arguments: &[&str], input: &str| {
            let variables = [("RINGFENCE_STATE_DIR", state.to_str().expect("valid UTF-8")), ("MAPS_KEY", values[1])];
            let arguments = [&["secret", "add"], arguments].concat();
            let output = run_in(user, &home, &arguments, Some(input), &variables);
            assert!(output.status.success(), "{user:?}: {output:?}");
            let shown = text(&output);
            assert!(values.iter().all(|value| !shown.contains(value)), "{user:?}: {shown}");
            shown
        };
        let shown = add(&["github", "--host", "API.github.com", "--method", "GET", "--path", "/repos/*"], VALUE);
        assert!(shown.starts_with("added github (variable GITHUB, for API.github.com)\n"), "{shown}");
        add(&["maps", "--host", "maps.example", "--in", "query", "--in", "header", "--from-env", "MAPS_KEY"], "");
        add(&["other", "--host", "a.test+private", "--host", "b.test:8443", "--from-file", "value"], "");
        assert_eq!((mode(&state), mode(&state.join("secrets.json"))), (0o700, 0o600), "{user:?}");

        let arguments: [&[&str]; 4] =
            [&["secret", "list"], &["secret", "list", "--json"], &["config", "show"], &["config", "show", "--json"]];
        for arguments in arguments {
            let variables = [("RINGFENCE_STATE_DIR", state.to_str().expect("valid UTF-8"))];
            let shown = text(&run_in(user, &home, arguments, None, &variables));
            assert!(values.iter().all(|value| !shown.contains(value)), "{user:?}: {arguments:?}: {shown}");
        }
        let variables = [("RINGFENCE_STATE_DIR", state.to_str().expect("valid UTF-8"))];
        let listed = run_in(user, &home, &["secret", "list", "--json"], None, &variables);
        let listed: Value = serde_json::from_slice(&listed.stdout).expect("valid JSON");
        let store = json!({"kind": "store"});
        let expected = json!({"secrets": [
            {"name": "github", "variable": "GITHUB", "hosts": ["api.github.com"], "methods": ["GET"],
             "paths": ["/repos/*"], "in": ["header"], "source": store},
            {"name": "maps", "variable": "MAPS_KEY", "hosts": ["maps.example"], "methods": [], "paths": [],
             "in": ["header", "query"], "source": store},
            {"name": "other", "variable": "OTHER", "hosts": ["a.test+private", "b.test:8443"], "methods": [],
             "paths": [], "in": ["header"], "source": store},
        ]});
        assert_eq!(listed, expected, "{user:?}");
        for value in values {
            assert_eq!(files_with(&state, value), ["secrets.json"], "{user:?}");
        }
        for name in ["github", "maps", "other"] {
            let removed = run_in(user, &home, &["secret", "remove", name], None, &variables);
            assert_eq!(String::from_utf8_lossy(&removed.stdout), format!("removed {name}\n"), "{user:?}: {removed:?}");
        }
        for value in values {
            assert_eq!(files_with(&state, value), Vec::<String>::new(), "{user:?}");
        }
    });
}

#[test]
fn invalid_secrets_are_refused_without_a_value_in_the_error() {
    let state = User::Root.directory();
    assert_eq!(succeed(User::Root, &state, &["secret", "list"]), "no secrets\n");
    let add = ["secret", "add", "github", "--host", "api.github.com"];
    let errors = [
        fail(&state, &add, "short"),
        fail(&state, &add, ""),
        fail(&state, &add, &format!("{VALUE}\n{VALUE}")),
        fail(&state, &["secret", "add", "github", "--host", "https://api.github.com"], VALUE),
        fail(&state, &["secret", "add", "github", "--host", "api.github.com method=GET"], VALUE),
        fail(&state, &[&add[..], &["--variable", "1x"]].concat(), VALUE),
        fail(&state, &[&add[..], &["--path", "repos"]].concat(), VALUE),
        fail(&state, &[&add[..], &["--from-env", "NO_SUCH_VARIABLE"]].concat(), VALUE),
        fail(&state, &[&add[..], &["--from-file", "no-such-file"]].concat(), VALUE),
    ];
    let errors = errors.join("\n");
    assert!(!errors.contains(VALUE), "{errors}");
    insta::assert_snapshot!(errors);
    assert!(!state.path().join("secrets.json").exists());
    // A value is never an argument.
    let output = run_with(User::Root, &state, &[&add[..], &[VALUE]].concat(), None);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    for name in ["", "a b", "a/b"] {
        let output = run_with(User::Root, &state, &["secret", "add", name, "--host", "a.test"], Some(VALUE));
        assert_eq!(output.status.code(), Some(125), "{name}: {output:?}");
    }
}

#[test]
fn existing_secret_is_replaced_only_on_request_and_unknown_names_get_a_suggestion() {
    let state = User::Root.directory();
    let add = ["github", "--host", "api.github.com"];
    add_secret(User::Root, &state, VALUE, &add);
    let error = fail(&state, &[&["secret", "add"], &add[..]].concat(), "another-value");
    assert!(error.contains("`github` already exists") && error.contains("--replace"), "{error}");
    assert_eq!(files_with(state.path(), VALUE), ["secrets.json"]);
    add_secret(User::Root, &state, "another-value", &[&add[..], &["--replace"]].concat());
    assert_eq!(files_with(state.path(), VALUE), Vec::<String>::new());
    let error = fail(&state, &["secret", "remove", "githb"], "");
    assert!(error.contains("secret not found: githb") && error.contains("did you mean `github`?"), "{error}");
    let error = fail(&state, &["server", "add", "x", "--secret", "githb", "--", "x"], "");
    assert!(error.contains("secret not found: githb") && error.contains("did you mean `github`?"), "{error}");
}

#[test]
fn file_that_others_could_have_read_or_written_is_refused() {
    let state = User::Root.directory();
    add_secret(User::Root, &state, VALUE, &["github", "--host", "api.github.com"]);
    write(&state, "ringfence.toml", "[sessions]\nsecrets = [\"github\"]\n");
    let file = state.path().join("secrets.json");
    for (mode, commands) in [
        (0o640, [&["secret", "list"][..], &["server", "list"], &["serve", "--port", "0"]]),
        (0o602, [&["secret", "list"], &["secret", "remove", "github"], &["secret", "add", "x", "--host", "a.test"]]),
    ] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("set the mode");
        for arguments in commands {
            let error = fail(&state, arguments, VALUE);
            let problem = format!("can be read or written by others (mode {mode:04o})");
            assert!(error.contains(&problem) && error.contains("hint: `chmod 600 "), "{arguments:?}: {error}");
        }
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("set the mode");
    std::os::unix::fs::chown(&file, Some(65_534), None).expect("set the owner");
    let error = fail(&state, &["secret", "list"], "");
    assert!(error.contains("belongs to another user (uid 65534)"), "{error}");
    std::os::unix::fs::chown(&file, Some(0), None).expect("set the owner");
    // A damaged file is not shown.
    let damaged = fs::read_to_string(&file).expect("read the file").replace("\"value\": ", "\"value\": [");
    fs::write(&file, damaged).expect("write the file");
    let error = fail(&state, &["secret", "list"], "");
    assert!(error.contains("invalid content in line") && !error.contains(VALUE), "{error}");
}

#[test]
fn configuration_may_name_a_secret_before_it_is_added() {
    let state = User::Root.directory();
    write(
        &state,
        "ringfence.toml",
        "[sessions]\nsecrets = [\"github\"]\n[templates.python]\nsecrets = [\"github\"]\n\
         [servers.hub]\ncommand = \"x\"\nbox = { secrets = [\"github\"] }\n",
    );
    let error = fail(&state, &["server", "list"], "");
    assert!(error.contains("unknown secret `github`") && error.contains("ringfence secret add github"), "{error}");
    add_secret(User::Root, &state, VALUE, &["github", "--host", "api.github.com"]);
    succeed(User::Root, &state, &["server", "list"]);
    succeed(User::Root, &state, &["server", "add", "stored", "--secret", "github", "--", "x"]);
    let entry: Value =
        serde_json::from_str(&succeed(User::Root, &state, &["server", "show", "stored", "--json"])).expect("JSON");
    assert_eq!(entry["entry"]["box"], json!({"secrets": ["github"], "allow": ["api.github.com"]}));
    let shown = succeed(User::Root, &state, &["secret", "remove", "github"]);
    let users = "sessions.secrets, templates.python.secrets, the server `hub` and the server `stored`";
    assert!(shown.contains(users), "{shown}");
    assert_eq!(succeed(User::Root, &state, &["secret", "list"]), "no secrets\n");
}

#[test]
fn stored_secret_is_used_instead_of_one_in_the_configuration() {
    let state = User::Root.directory();
    let table = "[secrets.github]\ncommand = [\"pass\", \"very-private\"]\nhosts = [\"a.test\"]\n";
    write(&state, "ringfence.toml", table);
    let sources = |state: &TempDir| list(User::Root, state).into_iter().map(|mut secret| secret["source"].take());
    let path = state.path().canonicalize().expect("the directory exists").join("ringfence.toml");
    let configured = json!({"kind": "configuration", "path": path, "line": 2, "key": "command"});
    let listed: Vec<Value> = sources(&state).collect();
    assert!(
        listed.len() == 1 && listed[0]["key"] == "command" && listed[0]["line"] == configured["line"],
        "{listed:?}"
    );
    let shown = text(&add_secret(User::Root, &state, VALUE, &["github", "--host", "b.test"]));
    assert!(shown.contains("it is used instead of [secrets.github] at"), "{shown}");
    assert_eq!(sources(&state).collect::<Vec<_>>(), [json!({"kind": "store"})]);
    let shown = succeed(User::Root, &state, &["secret", "list"]);
    assert!(shown.contains("is not used") && !shown.contains("very-private"), "{shown}");
    let shown = succeed(User::Root, &state, &["secret", "remove", "github"]);
    assert!(shown.contains("is used again after the next start"), "{shown}");
    let error = fail(&state, &["secret", "remove", "github"], "");
    assert!(error.contains("is defined at") && error.contains("ringfence.toml:"), "{error}");
}

#[test]
fn concurrent_changes_lose_no_secret() {
    let state = User::Root.directory();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let state = &state;
            scope.spawn(move || {
                let name = format!("secret-{number}");
                add_secret(User::Root, state, VALUE, &[&name, "--host", "a.test"]);
            });
        }
    });
    assert_eq!(list(User::Root, &state).len(), 8);
}
