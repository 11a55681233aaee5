//! `ringfence bench` executes the program `ringfence-bench`, which is a script in these tests. `crates/bench` tests the
//! benchmark itself.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::everyone::BINARY;

/// Two directories: one with `ringfence`, and one that is the whole PATH.
struct Installation {
    directory: tempfile::TempDir,
}

impl Installation {
    fn new() -> Self {
        // In the build directory, so that the program can be linked instead of copied.
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo creates the directory");
        for name in ["beside", "path"] {
            fs::create_dir(directory.path().join(name)).expect("the directory is new");
        }
        fs::hard_link(BINARY, directory.path().join("beside/ringfence")).expect("both are in the build directory");
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().canonicalize().expect("the directory exists").join(name)
    }

    /// Installs a benchmark program that prints its directory and its arguments, and exits with 3.
    fn install_script(&self, directory: &str) {
        let file = self.path(directory).join("ringfence-bench");
        fs::write(&file, format!("#!/bin/sh\necho {directory} \"$@\"\nexit 3\n")).expect("the directory is writable");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("the file is ours");
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(self.path("beside/ringfence"));
        command.arg("bench").args(arguments).current_dir(self.directory.path());
        command.env_clear().env("PATH", self.path("path")).env("HOME", self.path("home"));
        let config = self.path("ringfence.toml");
        if config.exists() {
            command.env("RINGFENCE_CONFIG", config);
        }
        command.output().expect("the program starts")
    }

    /// Returns the output of the script in `directory` with these arguments.
    fn expected(&self, directory: &str, arguments: &str) -> String {
        format!("{directory} --program {} {arguments}\n", self.path("beside/ringfence").display())
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn arguments_are_passed_to_the_program_beside_ringfence_else_on_path() {
    let installation = Installation::new();
    installation.install_script("path");
    let output = installation.run(&["--quick", "warm", "--sessions", "7"]);
    assert_eq!(stdout(&output), installation.expected("path", "--quick warm --sessions 7"), "{output:?}");
    assert_eq!(output.status.code(), Some(3));
    installation.install_script("beside");
    let output = installation.run(&["cold", "--json"]);
    assert_eq!(stdout(&output), installation.expected("beside", "cold --json"), "{output:?}");
}

#[test]
fn missing_program_is_an_error_but_help_works() {
    let installation = Installation::new();
    let output = installation.run(&["warm"]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    insta::assert_snapshot!(String::from_utf8_lossy(&output.stderr), @r"
    error: the benchmark program `ringfence-bench` is not installed
    hint: build it with `cargo build --release -p ringfence-bench`, then copy it beside `ringfence` or to a directory on PATH
    ");
    let help = installation.run(&["--help"]);
    assert!(help.status.success() && stdout(&help).contains("round-trip:"), "{help:?}");
    assert!(!installation.path("home").exists(), "nothing is created");
}

#[test]
fn program_that_a_guest_could_have_written_is_not_executed() {
    let installation = Installation::new();
    installation.install_script("beside");
    let configure = |beside: &Path, access: &str| {
        let volume = format!("{}:/data:{access}", beside.display());
        fs::write(installation.path("ringfence.toml"), format!("[sessions]\nvolumes = [{volume:?}]\n"))
            .expect("writable");
    };
    configure(&installation.path("beside"), "rw");
    let output = installation.run(&["warm"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(125), ""), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("ringfence-bench is not executed") && stderr.contains("caused by: guests may write"));
    configure(&installation.path("beside"), "ro");
    let output = installation.run(&["warm"]);
    assert_eq!(stdout(&output), installation.expected("beside", "warm"), "{output:?}");
}
