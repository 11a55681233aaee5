//! A server that its entry wants run on the host: an ordinary process in a group of its own.
//!
//! It has the rights of the user who runs ringfence. Therefore it is refused if guests could have written its program,
//! its scripts, its working directory or the user's settings. Processes that leave its process group do not end with
//! it. If ringfence is killed, the server only gets EOF on its standard input, unless a supervisor kills it too.

mod trusted;

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

use super::phase::{Phase, StartFailure};
use crate::server_sandbox::Ended;
use ringfence_config::GuestWritable;
use ringfence_entries::StdioSettings;

/// The process. Dropped, its group is killed.
pub(crate) struct Bare {
    group: Pid,
    ended: watch::Receiver<Option<Ended>>,
}

pub(crate) struct BareStreams {
    pub(crate) stdin: Sender,
    pub(crate) stdout: Receiver,
    pub(crate) stderr: Receiver,
}

impl Bare {
    pub(crate) fn start(
        settings: &StdioSettings,
        writable: &GuestWritable,
    ) -> Result<(Self, BareStreams), StartFailure> {
        let failed = |error: &dyn std::fmt::Display| {
            StartFailure::transient(Phase::ProcessStart, format!("{} cannot be started: {error}", settings.command))
        };
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|errno| failed(&errno));
        let ((stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr)) = (pipe()?, pipe()?, pipe()?);
        let environment = environment(settings, writable);
        let program = trusted::program(settings, environment.get(OsStr::new("PATH")), writable)?;
        let mut command = Command::new(program);
        command
            .args(&settings.args)
            .env_clear()
            .envs(environment)
            .current_dir(trusted::working_directory(settings))
            .stdin(stdin)
            .stdout(stdout)
            .stderr(stderr)
            .process_group(0);
        let child = command.spawn().map_err(|error| {
            StartFailure::lasting(Phase::ProcessStart, format!("{} cannot be started: {error}", settings.command))
                .hint("give a program by its full path, or one on the PATH of whoever runs ringfence")
        })?;
        drop(command);
        let group = Pid::from_child(&child);
        let (sender, ended) = watch::channel(None);
        // Detached: it ends with the process, which is killed when this is dropped.
        let waiting = std::thread::Builder::new().spawn(move || wait(child, &sender));
        waiting.map_err(|error| {
            let _ = kill_process_group(group, Signal::KILL);
            let _ = waitpid(Some(group), WaitOptions::empty());
            failed(&error)
        })?;
        let bare = Self { group, ended };
        let receive = |fd: OwnedFd| Receiver::from_owned_fd(fd).map_err(|error| failed(&error));
        let streams = BareStreams {
            stdin: Sender::from_owned_fd(to_stdin).map_err(|error| failed(&error))?,
            stdout: receive(from_stdout)?,
            stderr: receive(from_stderr)?,
        };
        Ok((bare, streams))
    }

    pub(crate) fn id(&self) -> String {
        format!("none (process {} of the host)", self.group.as_raw_nonzero())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // Once it has been waited for, its number may be another's.
        if self.ended.borrow().is_none() {
            let _ = kill_process_group(self.group, signal);
        }
    }

    pub(crate) async fn ended(&self) -> Ended {
        let mut ended = self.ended.clone();
        let found = ended.wait_for(Option::is_some).await.ok().and_then(|ended| *ended);
        found.unwrap_or(Ended::Lost { for_memory: false })
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Waits for its end, ends what is left of its group, and reaps it.
fn wait(mut child: Child, ended: &watch::Sender<Option<Ended>>) {
    let group = Pid::from_child(&child);
    // Not yet reaped, so that its number is still the group's.
    while matches!(waitid(WaitId::Pid(group), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT), Err(Errno::INTR)) {}
    let _ = kill_process_group(group, Signal::KILL);
    let describe = |status: ExitStatus| match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Exited(code),
        (None, signal) => Ended::Killed { signal: signal.unwrap_or_default(), for_memory: false },
    };
    ended.send_replace(Some(child.wait().map_or(Ended::Lost { for_memory: false }, describe)));
}

/// The variables of its entry, and what any program needs to find others and its own settings. Directories that guests
/// may write are left out of PATH.
fn environment(settings: &StdioSettings, writable: &GuestWritable) -> BTreeMap<OsString, OsString> {
    let host = ["PATH", "HOME"].into_iter().filter_map(|name| Some((name.into(), std::env::var_os(name)?)));
    let own = settings.env.iter().chain(&settings.sandbox_settings.env);
    let mut variables: BTreeMap<OsString, OsString> =
        host.chain(own.map(|(name, value)| (name.into(), value.into()))).collect();
    if let Some(path) = variables.get_mut(OsStr::new("PATH")) {
        *path = trusted::search_path(path, writable);
    }
    variables
}
