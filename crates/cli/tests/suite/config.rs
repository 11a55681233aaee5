//! `ringfence config` and `serve --config`, as a person meets them.

use std::path::Path;
use std::process::{Command, Output};

use ringfence_config::Sources;
use ringfence_core::Principal;
use ringfence_session::{CodeRequest, Sessions};
use tokio_util::sync::CancellationToken;

use crate::BINARY;

/// Runs ringfence in a directory, with nothing of this process's own environment.
fn ringfence(directory: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(BINARY);
    command.args(arguments).current_dir(directory).env_clear().env("HOME", directory);
    command.envs(variables.iter().copied()).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn what_holds_is_shown_with_where_it_came_from() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("ringfence.toml"), "[sessions]\nmax_sessions = 5\n").expect("it is written");
    let variables = [("RINGFENCE_AUTH_TOKEN", "hush"), ("RINGFENCE_STATE_DIR", "/state")];
    let shown = text(&ringfence(directory.path(), &["config", "show"], &variables).stdout);
    for line in [
        "# ringfence.toml",
        "sessions.max_sessions = 5  # ringfence.toml:2",
        "server.tokens.token = \"(set)\"  # environment variable RINGFENCE_AUTH_TOKEN",
        "sessions.state_dir = \"/state\"  # environment variable RINGFENCE_STATE_DIR",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line} is not in\n{shown}");
    }
    assert!(!shown.contains("hush"));
    let json = ringfence(directory.path(), &["config", "show", "--json"], &variables).stdout;
    let json: serde_json::Value = serde_json::from_slice(&json).expect("it is JSON");
    let origin = &json["values"]["sessions.max_sessions"]["origin"];
    assert_eq!(*origin, serde_json::json!({"from": "file", "path": "ringfence.toml", "line": 2}));
}

#[test]
fn a_server_does_not_start_with_a_configuration_that_does_not_hold() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("bad.toml"), "[sessions]\nmax_sesions = 5\n").expect("it is written");
    let said = |arguments: &[&str], variables: &[(&str, &str)]| {
        let output = ringfence(directory.path(), arguments, variables);
        assert_eq!(output.status.code(), Some(125), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    insta::assert_snapshot!(
        [
            said(&["serve", "--config", "bad.toml"], &[]),
            said(&["serve", "--config", "none.toml"], &[]),
            said(&["serve", "--max-sessions", "0"], &[]),
            said(&["config", "show"], &[("MCP_SERVER_PORT", "http")]),
            said(&["serve"], &[("RINGFENCE_AUTH_TOKEN", "")]),
        ]
        .join("\n")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_and_a_flavor_of_the_configuration_are_used() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("ringfence.toml");
    let text = "[sessions]\ndefault_template = \"greeter\"\ndefault_flavor = \"tiny\"\n\
                [templates.greeter]\nlanguage = \"bash\"\nenv = { GREETING = \"hello\" }\n\
                [flavors.tiny]\ncpus = 1.0\nmemory = \"256M\"\npids = 40\n";
    std::fs::write(&file, text).expect("it is written");
    let sources = Sources { file: Some(file), ..Sources::default() };
    let settings = ringfence_config::load(&sources).expect("it holds").sessions;
    let sessions = Sessions::new(settings, BINARY.into());
    let code = "echo $GREETING".to_owned();
    let request = CodeRequest { code, template: None, flavor: None, session_id: None, timeout: None, host: None };
    let answer = sessions.execute(&Principal::local(), request, CancellationToken::new()).await.expect("it runs");
    assert_eq!(answer.stdout.head, b"hello\n");
    let info = sessions.info(&Principal::local(), &answer.session_id).await.expect("it is there");
    assert_eq!((info.template.as_str(), info.flavor.as_str()), ("greeter", "tiny"));
    assert_eq!(info.memory_limit_bytes, 256 << 20);
    sessions.shut_down().await;
}
