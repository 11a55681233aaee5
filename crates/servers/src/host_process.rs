//! A server that runs on the host because its entry has `sandbox = false`: an ordinary process in a separate process
//! group.
//!
//! It has the rights of the user who runs ringfence. Therefore it is refused if guests could have written its program,
//! its scripts, its working directory or the user's settings. Processes that leave its process group do not end with
//! it. If ringfence is killed, the server only gets EOF on its standard input, unless a supervisor kills it too.

mod trust;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, waitid, waitpid};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::watch;

use crate::phase::{Phase, StartFailure};
use crate::server_sandbox::ProcessExit;
use ringfence_config::GuestWritable;
use ringfence_entries::StdioSettings;

/// A process on the host. Dropping it kills its process group.
pub(crate) struct HostProcess {
    group: Pid,
    exit: watch::Receiver<Option<ProcessExit>>,
}

pub(crate) struct HostProcessStreams {
    pub(crate) stdin: Sender,
    pub(crate) stdout: Receiver,
    pub(crate) stderr: Receiver,
}

impl HostProcess {
    pub(crate) fn start(
        settings: &StdioSettings,
        writable: &GuestWritable,
    ) -> Result<(Self, HostProcessStreams), StartFailure> {
        let failed = |error: &dyn std::fmt::Display| {
            StartFailure::transient(Phase::ProcessStart, format!("{} cannot be started: {error}", settings.command))
        };
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|errno| failed(&errno));
        let ((stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr)) = (pipe()?, pipe()?, pipe()?);
        let environment = environment(settings, writable);
        let program = trust::program(settings, environment.get(OsStr::new("PATH")), writable)?;
        let mut command = Command::new(program);
        command
            .args(&settings.args)
            .env_clear()
            .envs(environment)
            .current_dir(trust::working_directory(settings))
            .stdin(stdin)
            .stdout(stdout)
            .stderr(stderr)
            .process_group(0);
        let child = command.spawn().map_err(|error| {
            StartFailure::permanent(Phase::ProcessStart, format!("{} cannot be started: {error}", settings.command))
                .hint("give the full path of the program, or a name on the PATH of the user who runs ringfence")
        })?;
        drop(command);
        let group = Pid::from_child(&child);
        let (sender, exit) = watch::channel(None);
        // Detached: the thread ends with the process, which is killed when `HostProcess` is dropped.
        let wait_thread = std::thread::Builder::new().spawn(move || wait(child, &sender));
        wait_thread.map_err(|error| {
            let _ = kill_process_group(group, Signal::KILL);
            let _ = waitpid(Some(group), WaitOptions::empty());
            failed(&error)
        })?;
        let process = Self { group, exit };
        let receive = |fd: OwnedFd| Receiver::from_owned_fd(fd).map_err(|error| failed(&error));
        let streams = HostProcessStreams {
            stdin: Sender::from_owned_fd(to_stdin).map_err(|error| failed(&error))?,
            stdout: receive(from_stdout)?,
            stderr: receive(from_stderr)?,
        };
        Ok((process, streams))
    }

    pub(crate) fn id(&self) -> String {
        format!("none (process {} of the host)", self.group.as_raw_nonzero())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // After the process was reaped, its ID may belong to another process.
        if self.exit.borrow().is_none() {
            let _ = kill_process_group(self.group, signal);
        }
    }

    pub(crate) async fn wait_for_exit(&self) -> ProcessExit {
        let mut exit = self.exit.clone();
        let exit = exit.wait_for(Option::is_some).await.ok().and_then(|exit| *exit);
        exit.unwrap_or(ProcessExit::SandboxLost { is_out_of_memory: false })
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Waits until the process exits, kills the rest of its group, and reaps it.
fn wait(mut child: Child, exit: &watch::Sender<Option<ProcessExit>>) {
    let group = Pid::from_child(&child);
    // NOWAIT does not reap the process, so that its ID still identifies the group below.
    while matches!(waitid(WaitId::Pid(group), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT), Err(Errno::INTR)) {}
    let _ = kill_process_group(group, Signal::KILL);
    let describe = |status: ExitStatus| match (status.code(), status.signal()) {
        (Some(code), _) => ProcessExit::Exited(code),
        (None, signal) => ProcessExit::Killed { signal: signal.unwrap_or_default(), is_out_of_memory: false },
    };
    let lost = ProcessExit::SandboxLost { is_out_of_memory: false };
    exit.send_replace(Some(child.wait().map_or(lost, describe)));
}

/// Returns the variables of the entry, and PATH and HOME of ringfence. Directories that guests may write are left out of
/// PATH.
fn environment(settings: &StdioSettings, writable: &GuestWritable) -> BTreeMap<OsString, OsString> {
    let host = ["PATH", "HOME"].into_iter().filter_map(|name| Some((name.into(), std::env::var_os(name)?)));
    let entry = settings.env.iter().chain(&settings.sandbox_settings.env);
    let mut variables: BTreeMap<OsString, OsString> =
        host.chain(entry.map(|(name, value)| (name.into(), value.into()))).collect();
    if let Some(path) = variables.get_mut(OsStr::new("PATH")) {
        *path = trust::search_path(path, writable);
    }
    variables
}
