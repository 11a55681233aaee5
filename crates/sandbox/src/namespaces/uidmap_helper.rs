//! Runs `newuidmap` and `newgidmap`, the setuid programs that map subordinate ids.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use crate::error::Error;

const HELPER_TIMEOUT: Duration = Duration::from_secs(10);

/// Finds a helper that only root can write.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    ["/usr/bin", "/bin", "/usr/local/bin", "/run/wrappers/bin"]
        .iter()
        .map(|directory| Path::new(directory).join(name))
        .find(|path| {
            path.is_file() && is_writable_by_root_only(path) && path.parent().is_some_and(is_writable_by_root_only)
        })
}

/// Whether only root can write a file or directory. The helpers run with root's rights, so a program that another user,
/// or a guest with that user's id, could have written is not accepted as a helper.
fn is_writable_by_root_only(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.uid() == 0 && found.mode() & 0o022 == 0)
}

/// A running helper.
pub(super) struct Helper {
    program: PathBuf,
    process: Child,
}

impl Helper {
    /// Starts a helper that maps each guest id to a host id in the user namespace of `pid`.
    pub(super) fn start(program: &Path, pid: Pid, ids: &[(u32, u32)]) -> Result<Self, Error> {
        let process = Command::new(program)
            .env_clear()
            .arg(pid.as_raw_nonzero().to_string())
            .args(ids.iter().flat_map(|(guest, host)| [guest.to_string(), host.to_string(), "1".into()]))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| failed(program, &error.to_string()))?;
        Ok(Self { program: program.to_owned(), process })
    }

    /// Waits until the ids are mapped.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        let deadline = Instant::now() + HELPER_TIMEOUT;
        loop {
            match self.process.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(_)) => {
                    let mut stderr = String::new();
                    let _ = self.process.stderr.take().map(|pipe| pipe.take(4096).read_to_string(&mut stderr));
                    return Err(failed(&self.program, stderr.trim()));
                }
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_micros(100)),
                Ok(None) => {
                    let _ = self.process.kill().and_then(|()| self.process.wait());
                    return Err(failed(&self.program, "timed out"));
                }
                Err(error) => return Err(failed(&self.program, &error.to_string())),
            }
        }
    }
}

fn failed(program: &Path, reason: &str) -> Error {
    Error::MissingProtection {
        protection: "a separate uid for the sandbox",
        reason: format!("{} failed: {reason}", program.display()),
        remedy: "check /etc/subuid and /etc/subgid, and that newuidmap and newgidmap are setuid root".into(),
        weakness: None,
    }
}
