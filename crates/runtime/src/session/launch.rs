//! The helper process that makes sandboxes for this one, which has threads and cannot.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ringfence_sandbox::launcher::{Examined, Launched, Launcher};
use ringfence_sandbox::{Error, Spec};
use rustix::process::Pid;

use super::{Failure, Kind};

/// The argument with which this program becomes a launcher.
pub const LAUNCHER_ROLE: &str = "launcher";

/// Starts the helper when it is first needed, and again when it is lost.
#[derive(Clone)]
pub(super) struct Helper {
    program: PathBuf,
    running: Arc<Mutex<Option<Running>>>,
}

struct Running {
    /// Always there until this is dropped.
    launcher: Option<Launcher>,
    process: Child,
}

/// How long the helper may take to free everything.
const FAREWELL: Duration = Duration::from_secs(10);

impl Drop for Running {
    fn drop(&mut self) {
        // With its socket closed it ends every sandbox, frees what they had, and exits.
        self.launcher = None;
        let deadline = Instant::now() + FAREWELL;
        while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Helper {
    /// `program` is ringfence itself, which becomes a launcher by [`LAUNCHER_ROLE`].
    pub(super) fn new(program: PathBuf) -> Self {
        Self { program, running: Arc::default() }
    }

    pub(super) async fn launch(&self, spec: Spec) -> Result<Launched, Failure> {
        let launched = self.ask(move |launcher| launcher.launch(&spec)).await?;
        launched.map_err(|error| {
            let failure = Failure::new(Kind::SandboxCreation, format!("the sandbox could not be made: {error}"));
            error.hints().into_iter().fold(failure, Failure::suggest)
        })
    }

    /// What the sandbox's cgroup has counted; nothing where that is not to be had.
    pub(super) async fn examine(&self, pid: Pid) -> Examined {
        let examined = self.ask(move |launcher| launcher.examine(pid)).await;
        examined.ok().and_then(Result::ok).unwrap_or_default()
    }

    /// Ends the helper, and with it every sandbox.
    pub(super) async fn end(&self) {
        let helper = self.clone();
        let _ =
            tokio::task::spawn_blocking(move || helper.running.lock().unwrap_or_else(PoisonError::into_inner).take())
                .await;
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Launcher) -> Result<T, Error> + Send + 'static,
    ) -> Result<Result<T, Error>, Failure> {
        let helper = self.clone();
        let asked = tokio::task::spawn_blocking(move || {
            let mut running = helper.running.lock().unwrap_or_else(PoisonError::into_inner);
            let current = match running.take() {
                Some(current) => current,
                None => start(&helper.program).map_err(|error| lost(&error.to_string()))?,
            };
            let Some(launcher) = &current.launcher else { return Err(lost("it is ending")) };
            let answer = question(launcher);
            // One that is lost is not kept: the next request starts another.
            if !matches!(answer, Err(Error::Lost | Error::Protocol(_))) {
                *running = Some(current);
            }
            Ok(answer)
        });
        asked.await.map_err(|error| lost(&error.to_string()))?
    }
}

fn lost(why: &str) -> Failure {
    Failure::new(Kind::Connection, format!("the launcher of sandboxes cannot be reached: {why}")).suggest("try again")
}

fn start(program: &Path) -> std::io::Result<Running> {
    let (ours, theirs) = UnixStream::pair()?;
    let process = Command::new(program)
        .arg(LAUNCHER_ROLE)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .spawn()?;
    Ok(Running { launcher: Some(Launcher::new(ours.into())), process })
}
