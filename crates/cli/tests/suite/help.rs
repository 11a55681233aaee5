//! Snapshots of the help texts, so that they do not change unnoticed.

use std::process::Command;

use crate::BINARY;

fn help(arguments: &[&str]) -> String {
    let output = Command::new(BINARY).args(arguments).env("COLUMNS", "100").output().expect("run the command");
    assert!(output.status.success());
    String::from_utf8(output.stdout).expect("valid UTF-8")
}

#[test]
fn program() {
    insta::assert_snapshot!(help(&["--help"]));
}

#[test]
fn run() {
    insta::assert_snapshot!(help(&["run", "--help"]));
}

#[test]
fn session() {
    insta::assert_snapshot!(help(&["session", "--help"]));
}

#[test]
fn session_exec() {
    insta::assert_snapshot!(help(&["session", "exec", "--help"]));
}

#[test]
fn server() {
    insta::assert_snapshot!(help(&["server", "--help"]));
}

#[test]
fn server_add() {
    insta::assert_snapshot!(help(&["server", "add", "--help"]));
}

#[test]
fn server_search() {
    insta::assert_snapshot!(help(&["server", "search", "--help"]));
}

#[test]
fn server_import() {
    insta::assert_snapshot!(help(&["server", "import", "--help"]));
}

#[test]
fn code_import_tools() {
    insta::assert_snapshot!(help(&["code", "import-tools", "--help"]));
}

#[test]
fn secret() {
    insta::assert_snapshot!(help(&["secret", "--help"]));
}

#[test]
fn secret_add() {
    insta::assert_snapshot!(help(&["secret", "add", "--help"]));
}

#[test]
fn cache_prune() {
    insta::assert_snapshot!(help(&["cache", "prune", "--help"]));
}

#[test]
fn audit_export() {
    insta::assert_snapshot!(help(&["audit", "export", "--help"]));
}

#[test]
fn doctor() {
    insta::assert_snapshot!(help(&["doctor", "--help"]));
}

#[test]
fn serve() {
    insta::assert_snapshot!(help(&["serve", "--help"]));
}

#[test]
fn up() {
    insta::assert_snapshot!(help(&["up", "--help"]));
}

#[test]
fn config() {
    insta::assert_snapshot!(help(&["config", "--help"]));
}

#[test]
fn bench() {
    insta::assert_snapshot!(help(&["bench", "--help"]));
}

#[test]
fn template_build() {
    insta::assert_snapshot!(help(&["template", "build", "--help"]));
}
