//! Environment of one case: copies of the scripts, a process, a file and a socket of the host, and a token in the
//! environment of all processes that the case starts, by which they are found again.

use std::fs;
use std::os::unix::fs::lchown;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use super::host_servers;
use crate::{User, process, repository_path, ringfence_path};

/// Environment variable with the token of the case, inside and outside of sandboxes.
pub const TOKEN_VARIABLE: &str = "RINGFENCE_ESCAPE_TOKEN";

/// Directory of the scripts inside a sandbox.
const SCRIPTS_INSIDE: &str = "/escape";

/// The port of the proxy inside a sandbox.
const PROXY_PORT: &str = "3128";

pub struct Setup {
    user: User,
    directory: TempDir,
    /// A process of the host that attacks must not reach.
    bystander: Child,
    token: String,
    /// A service of the host: connections to it succeed as long as it is bound.
    _socket: UnixListener,
}

impl Setup {
    /// Copies the scripts to a directory of the user, since the checkout may be in one that other users cannot enter.
    pub fn new(user: User) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let directory = user.directory();
        let scripts = directory.path().join("scripts");
        fs::create_dir(&scripts).expect("create a directory for the scripts");
        for entry in fs::read_dir(repository_path("tests/escape")).expect("list the scripts").flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "py") {
                fs::copy(entry.path(), scripts.join(entry.file_name())).expect("copy a script");
            }
        }
        let token = format!("e{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let bystander = process::start(user.program(Path::new("/usr/bin/sleep")).arg("600"));
        let socket = UnixListener::bind(directory.path().join("socket")).expect("bind a socket of the host");
        let setup = Self { user, directory, bystander, token, _socket: socket };
        setup.give_to_user(&setup.path("socket"));
        fs::write(setup.host_file(), "of the host\n").expect("write a file of the host");
        setup.give_to_user(&setup.host_file());
        setup
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    /// Returns a path in the directory of the case, which sandboxes see only where it is mounted.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn host_file(&self) -> PathBuf {
        self.path("host-file")
    }

    /// Makes the user the owner of a file, a directory or a link.
    pub fn give_to_user(&self, path: &Path) {
        let (uid, gid) = self.user.ids();
        lchown(path, Some(uid), Some(gid)).expect("set the owner");
    }

    /// Splits arguments at spaces, and replaces placeholders in braces.
    fn fill(&self, arguments: &str) -> Vec<String> {
        let servers = host_servers::running();
        let values = [
            ("{host_pid}", self.bystander.id().to_string()),
            ("{host_file}", self.host_file().display().to_string()),
            ("{runner}", ringfence_path().display().to_string()),
            ("{boot_id}", boot_id()),
            ("{token}", self.token.clone()),
            ("{directory}", self.directory.path().display().to_string()),
            ("{port}", servers.port.to_string()),
            ("{other_port}", servers.other_port.to_string()),
            ("{udp_port}", servers.udp_port.to_string()),
            ("{abstract}", servers.abstract_name.clone()),
        ];
        let fill = |word: &str| values.iter().fold(word.to_owned(), |word, (name, value)| word.replace(name, value));
        arguments.split_whitespace().map(fill).collect()
    }

    /// Fills in the volumes and the proxy as a process of the host finds them.
    fn fill_outside(&self, arguments: &str) -> Vec<String> {
        self.fill(&arguments.replace("{volumes}", "{directory}/volumes").replace("{proxy}", "{port}"))
    }

    /// Fills in the volumes and the proxy as a sandbox shows them.
    fn fill_inside(&self, arguments: &str) -> Vec<String> {
        self.fill(&arguments.replace("{volumes}", "/volumes").replace("{proxy}", PROXY_PORT))
    }

    /// Returns a command that runs a script without a sandbox.
    pub fn bare(&self, script: &str, arguments: &str) -> Command {
        let mut command = self.user.program(Path::new("/usr/bin/python3"));
        command.env(TOKEN_VARIABLE, &self.token);
        command.arg(self.path("scripts").join(script)).args(self.fill_outside(arguments));
        command
    }

    /// Returns a command that runs a script in a sandbox with these options of `ringfence run`.
    pub fn sandboxed(&self, options: &str, script: &str, arguments: &str) -> Command {
        let mut command = self.ringfence(options);
        command.arg("--").arg("python3").arg(Path::new(SCRIPTS_INSIDE).join(script)).args(self.fill_inside(arguments));
        command
    }

    /// Returns `ringfence run` with these options, the scripts and the token. The caller adds the command.
    pub fn ringfence(&self, options: &str) -> Command {
        let mut command = self.user.ringfence();
        let scripts = format!("{}:{SCRIPTS_INSIDE}:ro", self.path("scripts").display());
        command.args(["run", "--env", "RINGFENCE_ESCAPE_SANDBOXED=1", "--volume", &scripts]);
        command.args(["--env", &format!("{TOKEN_VARIABLE}={}", self.token)]);
        command.args(self.fill(options));
        // Start files of shells are protected in home directories.
        command.env("HOME", self.path("volumes/home"));
        command
    }

    /// Returns the same command with the host's file as standard input and as a descriptor that survives exec.
    pub fn with_host_file_open(&self, command: &Command) -> Command {
        let mut shell = self.user.program(Path::new("/bin/sh"));
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.args(["-c", r#"exec 9< "$0" 0< "$0"; exec "$@""#]).arg(self.host_file());
        shell.arg(command.get_program()).args(command.get_args());
        shell
    }
}

fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("read the boot id");
    id.trim().to_owned()
}

impl Drop for Setup {
    fn drop(&mut self) {
        // It has already ended if the case killed it, in which case the test fails.
        let _ = self.bystander.kill();
        let _ = self.bystander.wait();
    }
}
