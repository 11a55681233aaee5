//! What a case is given: the scripts, a process, a file and a socket of the host's, and a token by which all that it starts
//! is found again.

use std::fs;
use std::os::unix::fs::lchown;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use ringfence_testkit::Who;
use tempfile::TempDir;

use super::{run, servers};

/// The program under test.
pub(super) const RINGFENCE: &str = env!("CARGO_BIN_EXE_ringfence");

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/escape");

/// In the environment of every process that a case starts, inside and outside.
pub(super) const TOKEN: &str = "RINGFENCE_ESCAPE_TOKEN";

/// Where the scripts lie inside a sandbox.
const SCRIPTS_INSIDE: &str = "/escape";

pub(super) struct Stage {
    who: Who,
    directory: TempDir,
    bystander: Child,
    token: String,
    /// A service of the host's; connections to it succeed for as long as it is bound.
    _socket: UnixListener,
}

impl Stage {
    /// Copies the scripts to where `who` may read them: the checkout may lie in a home that others cannot enter.
    pub(super) fn set(who: Who) -> Self {
        static STAGES: AtomicU32 = AtomicU32::new(0);
        let directory = who.directory();
        let scripts = directory.path().join("scripts");
        fs::create_dir(&scripts).expect("a directory for the scripts");
        for entry in fs::read_dir(SCRIPTS).expect("the scripts are there").flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "py") {
                fs::copy(entry.path(), scripts.join(entry.file_name())).expect("a script is copied");
            }
        }
        let token = format!("e{}-{}", std::process::id(), STAGES.fetch_add(1, Ordering::Relaxed));
        let bystander = run::start(who.program(Path::new("/usr/bin/sleep")).arg("600"));
        let socket = UnixListener::bind(directory.path().join("socket")).expect("a socket of the host's");
        let stage = Self { who, directory, bystander, token, _socket: socket };
        stage.give(&stage.path("socket"));
        fs::write(stage.host_file(), "of the host\n").expect("a file of the host's");
        stage.give(&stage.host_file());
        stage
    }

    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// A path in the stage's directory, which no sandbox sees unless it is mounted.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(super) fn host_file(&self) -> PathBuf {
        self.path("host-file")
    }

    /// Makes a file, a directory or a link the user's own.
    pub(super) fn give(&self, path: &Path) {
        let (uid, gid) = self.who.ids();
        lchown(path, Some(uid), Some(gid)).expect("the owner is set");
    }

    /// Fills in what only the stage knows: words in braces.
    fn fill(&self, words: &str) -> Vec<String> {
        let servers = servers::running();
        let fillings = [
            ("{host_pid}", self.bystander.id().to_string()),
            ("{host_file}", self.host_file().display().to_string()),
            ("{runner}", RINGFENCE.to_owned()),
            ("{boot_id}", boot_id()),
            ("{token}", self.token.clone()),
            ("{stage}", self.directory.path().display().to_string()),
            ("{port}", servers.port.to_string()),
            ("{other_port}", servers.other_port.to_string()),
            ("{udp_port}", servers.udp_port.to_string()),
            ("{abstract}", servers.abstract_name.clone()),
        ];
        let fill = |word: &str| fillings.iter().fold(word.to_owned(), |word, (name, value)| word.replace(name, value));
        words.split_whitespace().map(fill).collect()
    }

    /// Where the same thing lies inside and outside: the volumes and the way out.
    fn fill_outside(&self, words: &str) -> Vec<String> {
        self.fill(&words.replace("{volumes}", "{stage}/volumes").replace("{proxy}", "{port}"))
    }

    fn fill_inside(&self, words: &str) -> Vec<String> {
        self.fill(&words.replace("{volumes}", "/volumes").replace("{proxy}", "3128"))
    }

    /// A script without a sandbox.
    pub(super) fn bare(&self, script: &str, arguments: &str) -> Command {
        let mut command = self.who.program(Path::new("/usr/bin/python3"));
        command.env(TOKEN, &self.token);
        command.arg(self.path("scripts").join(script)).args(self.fill_outside(arguments));
        command
    }

    /// A script in a sandbox with `options`.
    pub(super) fn sandboxed(&self, options: &str, script: &str, arguments: &str) -> Command {
        let mut command = self.ringfence(options);
        command.arg("--").arg("python3").arg(Path::new(SCRIPTS_INSIDE).join(script)).args(self.fill_inside(arguments));
        command
    }

    /// `ringfence run` with `options`, the scripts and the token; the command is still to be added.
    pub(super) fn ringfence(&self, options: &str) -> Command {
        let mut command = self.who.ringfence(Path::new(RINGFENCE));
        let scripts = format!("{}:{SCRIPTS_INSIDE}:ro", self.path("scripts").display());
        command.args(["run", "--env", "RINGFENCE_ESCAPE_SANDBOXED=1", "--volume", &scripts]);
        command.args(["--env", &format!("{TOKEN}={}", self.token)]);
        command.args(self.fill(options));
        // Start files of shells are protected in homes.
        command.env("HOME", self.path("volumes/home"));
        command
    }

    /// The same command, with the host's file as stdin and as another descriptor that survives exec.
    pub(super) fn with_host_file_open(&self, command: &Command) -> Command {
        let mut shell = self.who.program(Path::new("/bin/sh"));
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.args(["-c", r#"exec 9< "$0" 0< "$0"; exec "$@""#]).arg(self.host_file());
        shell.arg(command.get_program()).args(command.get_args());
        shell
    }
}

fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("the kernel has a boot id");
    id.trim().to_owned()
}

impl Drop for Stage {
    fn drop(&mut self) {
        // It may have been killed by the case, which has failed then.
        let _ = self.bystander.kill();
        let _ = self.bystander.wait();
    }
}
