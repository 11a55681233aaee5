//! Runs the program as root and as the ordinary users that `scripts/test` makes.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Nothing in the suite takes this long; what does is stuck.
const DEADLINE: Duration = Duration::from_secs(120);

/// Who starts the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Root,
    /// An ordinary user with no subordinate ids.
    Plain,
    /// An ordinary user with a range of subordinate ids.
    Sub,
}

/// How a run ended, and what it wrote.
#[derive(Debug)]
pub struct Outcome {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Outcome {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

impl Who {
    pub const ALL: [Self; 3] = [Self::Root, Self::Plain, Self::Sub];

    fn account(self) -> Option<&'static str> {
        match self {
            Self::Root => None,
            Self::Plain => Some("ringfence-plain"),
            Self::Sub => Some("ringfence-sub"),
        }
    }

    /// Why this cannot be tested here, if it cannot.
    pub fn unavailable(self) -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("the tests do not run as root, so they cannot change users".into());
        }
        let account = self.account()?;
        ids(account).is_none().then(|| format!("there is no user {account}; ./scripts/test makes it"))
    }

    /// The ids that the user has on the host.
    pub fn ids(self) -> (u32, u32) {
        self.account().and_then(ids).unwrap_or((0, 0))
    }

    /// A directory of this user's own, that nobody else may enter.
    pub fn directory(self) -> tempfile::TempDir {
        let directory = tempfile::Builder::new().prefix("ringfence-test-").tempdir_in("/tmp").expect("a directory");
        let (uid, gid) = self.ids();
        std::os::unix::fs::chown(directory.path(), Some(uid), Some(gid)).expect("its owner is set");
        directory
    }

    /// The program, as this user, with an environment that holds a secret of the host's.
    pub fn ringfence(self, binary: &Path) -> Command {
        self.program(shared(binary))
    }

    /// Any program, as this user.
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

    /// `ringfence run OPTIONS -- COMMAND` to its end.
    pub fn run(self, binary: &Path, options: &[&str], command: &[&str]) -> Outcome {
        finish(self.ringfence(binary).arg("run").args(options).arg("--").args(command), None)
    }

    /// The same with something on standard input.
    pub fn run_with_input(self, binary: &Path, options: &[&str], command: &[&str], input: &[u8]) -> Outcome {
        let mut program = self.ringfence(binary);
        finish(program.arg("run").args(options).arg("--").args(command).stdin(Stdio::piped()), Some(input))
    }
}

/// Runs a program to its end, or fails the test after the deadline.
pub(crate) fn finish(command: &mut Command, input: Option<&[u8]>) -> Outcome {
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdin = child.stdin.take();
    let mut stdout = child.stdout.take().expect("stdout is piped");
    let mut stderr = child.stderr.take().expect("stderr is piped");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if let (Some(mut stdin), Some(input)) = (stdin, input) {
                // The program may end without reading it all.
                let _ = stdin.write_all(input);
            }
        });
        let out = scope.spawn(move || read(&mut stdout));
        let err = scope.spawn(move || read(&mut stderr));
        let code = wait(&mut child);
        let stderr = String::from_utf8_lossy(&err.join().expect("stderr is read")).into_owned();
        Outcome { code, stdout: out.join().expect("stdout is read"), stderr }
    })
}

fn read(from: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).expect("the stream is readable");
    bytes
}

fn wait(child: &mut Child) -> i32 {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(status) = child.try_wait().expect("the child is ours") {
            return status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        }
        if Instant::now() > deadline {
            child.kill().expect("the child is ours");
            panic!("a run was not over after {DEADLINE:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The program where every user may execute it: a copy, if the checkout lies in a home that others cannot enter.
fn shared(binary: &Path) -> &'static Path {
    static SHARED: OnceLock<PathBuf> = OnceLock::new();
    SHARED.get_or_init(|| {
        let open_to_all = |path: &Path| fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o1 != 0);
        if binary.ancestors().all(open_to_all) {
            return binary.to_owned();
        }
        let directory = tempfile::Builder::new().prefix("ringfence-test-bin-").tempdir_in("/tmp").expect("a directory");
        // Kept until the machine forgets /tmp: tests end without a last one that could remove it.
        let directory = directory.keep();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("others may enter it");
        let copy = directory.join("ringfence");
        fs::copy(binary, &copy).expect("the program is copied");
        copy
    })
}

fn ids(account: &str) -> Option<(u32, u32)> {
    let passwd = fs::read_to_string("/etc/passwd").ok()?;
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == account).then_some(())?;
        Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
    })
}
