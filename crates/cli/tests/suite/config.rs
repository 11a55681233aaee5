//! `ringfence config` and `serve --config`: displayed settings, their origins, and errors of invalid configurations.

use std::path::Path;
use std::process::{Command, Output};

use ringfence_config::Sources;
use ringfence_core::Principal;
use ringfence_session::{CodeRequest, Sessions};
use tokio_util::sync::CancellationToken;

use crate::BINARY;

/// Runs ringfence in a directory, without the environment of this process.
fn ringfence(directory: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(BINARY);
    command.args(arguments).current_dir(directory).env_clear().env("HOME", directory);
    command.envs(variables.iter().copied()).output().expect("command runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn settings_are_shown_with_their_origin() {
    let directory = tempfile::tempdir().expect("temporary directory");
    std::fs::write(directory.path().join("ringfence.toml"), "[sessions]\nmax_sessions = 5\n").expect("file is written");
    let variables = [("RINGFENCE_AUTH_TOKEN", "secret-token"), ("RINGFENCE_STATE_DIR", "/state")];
    let shown = text(&ringfence(directory.path(), &["config", "show"], &variables).stdout);
    for line in [
        "# ringfence.toml",
        "sessions.max_sessions = 5  # ringfence.toml:2",
        "server.tokens.token = \"(set)\"  # environment variable RINGFENCE_AUTH_TOKEN",
        "sessions.state_dir = \"/state\"  # environment variable RINGFENCE_STATE_DIR",
    ] {
        assert!(shown.lines().any(|candidate| candidate == line), "{line} is not in\n{shown}");
    }
    assert!(!shown.contains("secret-token"), "the secret is shown");
    let json = ringfence(directory.path(), &["config", "show", "--json"], &variables).stdout;
    let json: serde_json::Value = serde_json::from_slice(&json).expect("output is JSON");
    let origin = &json["values"]["sessions.max_sessions"]["origin"];
    assert_eq!(*origin, serde_json::json!({"from": "file", "path": "ringfence.toml", "line": 2}));
}

#[test]
fn invalid_configuration_is_refused_with_an_error() {
    let directory = tempfile::tempdir().expect("temporary directory");
    std::fs::write(directory.path().join("bad.toml"), "[sessions]\nmax_sesions = 5\n").expect("file is written");
    let error_of = |arguments: &[&str], variables: &[(&str, &str)]| {
        let output = ringfence(directory.path(), arguments, variables);
        assert_eq!(output.status.code(), Some(125), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    insta::assert_snapshot!(
        [
            error_of(&["serve", "--config", "bad.toml"], &[]),
            error_of(&["serve", "--config", "none.toml"], &[]),
            error_of(&["serve", "--max-sessions", "0"], &[]),
            error_of(&["config", "show"], &[("MCP_SERVER_PORT", "http")]),
            error_of(&["serve"], &[("RINGFENCE_AUTH_TOKEN", "")]),
        ]
        .join("\n")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn configured_template_and_flavor_are_used() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let file = directory.path().join("ringfence.toml");
    let text = "[sessions]\ndefault_template = \"greeter\"\ndefault_flavor = \"tiny\"\n\
                [templates.greeter]\nlanguage = \"bash\"\nenv = { GREETING = \"hello\" }\n\
                [flavors.tiny]\ncpus = 1.0\nmemory = \"256M\"\npids = 40\n";
    std::fs::write(&file, text).expect("file is written");
    let sources = Sources { file: Some(file), ..Sources::default() };
    let settings = ringfence_config::load(&sources).expect("configuration is valid").sessions;
    let sessions = Sessions::new(settings, BINARY.into());
    let code = "echo $GREETING".to_owned();
    let request = CodeRequest {
        code,
        template: None,
        flavor: None,
        session_id: None,
        timeout: None,
        host: None,
        questions: None,
        rich_html: false,
    };
    let response = sessions.execute(&Principal::local(), request, CancellationToken::new()).await.expect("code runs");
    assert_eq!(response.stdout.head, b"hello\n");
    let info = sessions.info(&Principal::local(), &response.session_id).await.expect("session exists");
    assert_eq!((info.template.as_str(), info.flavor.as_str()), ("greeter", "tiny"));
    assert_eq!(info.memory_limit_bytes, 256 << 20);
    sessions.shut_down().await;
}
