//! The users as whom tests run the program: root, and two ordinary users that `scripts/test` creates.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::process::{self, Outcome};
use crate::{paths, skip};

/// The user that starts a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    Root,
    /// An ordinary user without subordinate ids.
    Plain,
    /// An ordinary user with a range of subordinate ids.
    WithSubids,
}

impl User {
    pub const ALL: [Self; 3] = [Self::Root, Self::Plain, Self::WithSubids];

    fn account(self) -> Option<&'static str> {
        match self {
            Self::Root => None,
            Self::Plain => Some("ringfence-plain"),
            Self::WithSubids => Some("ringfence-sub"),
        }
    }

    /// Returns the reason why tests cannot run as this user, if they cannot.
    pub fn unavailable(self) -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("the tests do not run as root, so they cannot change users".into());
        }
        let account = self.account()?;
        ids(account).is_none().then(|| format!("the user {account} does not exist; ./scripts/test creates it"))
    }

    /// Records a skip and returns true if tests cannot run as this user.
    pub fn skip_if_unavailable(self, test: &str) -> bool {
        let reason = self.unavailable();
        if let Some(reason) = &reason {
            skip(test, reason);
        }
        reason.is_some()
    }

    /// Returns the uid and gid on the host.
    pub fn ids(self) -> (u32, u32) {
        self.account().and_then(ids).unwrap_or((0, 0))
    }

    /// Creates a directory that only this user may enter.
    pub fn directory(self) -> tempfile::TempDir {
        let directory = tempfile::Builder::new().prefix("ringfence-test-").tempdir_in("/tmp").expect("a directory");
        let (uid, gid) = self.ids();
        std::os::unix::fs::chown(directory.path(), Some(uid), Some(gid)).expect("set the owner of the directory");
        directory
    }

    /// Returns a command that starts `ringfence` as this user.
    pub fn ringfence(self) -> Command {
        self.program(paths::public_ringfence_path())
    }

    /// Returns a command that starts a program as this user, with piped output and a secret in its environment.
    pub fn program(self, program: &Path) -> Command {
        let mut command = Command::new(program);
        let (uid, gid) = self.ids();
        if self != Self::Root {
            command.uid(uid).gid(gid);
        }
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .env("HOME", "/nonexistent")
            .env("HOST_SECRET", "a-secret-of-the-host")
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn sandboxed(self, options: &[&str], command: &[&str]) -> Command {
        let mut ringfence = self.ringfence();
        ringfence.arg("run").args(options).arg("--").args(command);
        ringfence
    }
}

/// Runs a check as each user; records a skip for those that are not available.
pub fn for_each_user(test: &str, check: impl Fn(User)) {
    for user in User::ALL {
        if !user.skip_if_unavailable(&format!("{test} as {user:?}")) {
            check(user);
        }
    }
}

/// Runs `ringfence run OPTIONS -- COMMAND`.
pub fn run_as(user: User, options: &[&str], command: &[&str]) -> Outcome {
    process::run(&mut user.sandboxed(options, command))
}

/// Runs `ringfence run OPTIONS -- COMMAND` with `input` on standard input.
pub fn run_with_input_as(user: User, options: &[&str], command: &[&str], input: &[u8]) -> Outcome {
    process::run_with_input(user.sandboxed(options, command).stdin(Stdio::piped()), input)
}

/// Runs a Python program with `ringfence run OPTIONS`.
pub fn run_python_as(user: User, options: &[&str], program: &str) -> Outcome {
    run_as(user, options, &["python3", "-c", program])
}

fn ids(account: &str) -> Option<(u32, u32)> {
    let passwd = fs::read_to_string("/etc/passwd").ok()?;
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == account).then_some(())?;
        Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
    })
}
