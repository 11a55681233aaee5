//! One worker process: its connections come over its standard input, what it says on standard error is read to the end.
//!
//! It leads a session ([`lead_session`]), by which all that it has started is found when it is dead itself. The launcher
//! of its sandboxes, which leads another, is not its own: it waits with its sandboxes for the next worker.

use std::io::Result;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, pidfd_open, pidfd_send_signal, setsid, waitid,
};
use tokio::sync::watch;

use super::options::Options;
use crate::stderr_tail::Said;
use ringfence_backend::process_table::{Seen, see, see_all};
use ringfence_backend::{IDENTITY_VARIABLE, Identity};
use ringfence_config::SCOPE_FILE_VARIABLE;

/// The variable that tells a worker whose it is: its connections come over its standard input, and it ends with that
/// process.
pub const SUPERVISOR_VARIABLE: &str = "RINGFENCE_SUPERVISOR_PID";

/// What a service manager has said to the supervisor is not meant for its worker.
const NOT_PASSED_ON: [&str; 6] =
    ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// Whoever starts others while it is killed is looked for so often.
const MOST_LOOKS: usize = 16;

/// Dropped, it is killed with all that is its own.
pub(crate) struct Worker {
    pid: u32,
    /// Until it is reaped.
    child: Option<Child>,
    ended: watch::Receiver<bool>,
    said: Said,
}

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) exit_code: Option<i32>,
    pub(crate) signal: Option<i32>,
}

impl From<ExitStatus> for Ended {
    fn from(status: ExitStatus) -> Self {
        Self { exit_code: status.code(), signal: status.signal() }
    }
}

impl Worker {
    /// `channel` is its end of that on which connections come. To be called on a thread that lives longer than the worker,
    /// which dies with it.
    pub(crate) fn start(options: &Options, channel: OwnedFd, supervisor: Identity) -> Result<Self> {
        let mut command = Command::new(&options.program);
        for name in NOT_PASSED_ON {
            command.env_remove(name);
        }
        let mut child = command
            .args(&options.arguments)
            .envs(options.variables.iter().map(|(name, value)| (name, value)))
            .envs(options.scope_file.iter().map(|path| (SCOPE_FILE_VARIABLE, path)))
            .env(SUPERVISOR_VARIABLE, std::process::id().to_string())
            .env(IDENTITY_VARIABLE, supervisor.to_string())
            .stdin(Stdio::from(channel))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let stderr = child.stderr.take().map(OwnedFd::from);
        let watched = watch_end(&child).and_then(|ended| Ok((ended, Said::listen(stderr, options.log.clone())?)));
        match watched {
            Ok((ended, said)) => Ok(Self { pid: child.id(), child: Some(child), ended, said }),
            Err(error) => {
                let _ = child.kill();
                reap(child);
                Err(error)
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until it has ended. It is not reaped yet: its number still stands for its session.
    pub(crate) async fn ended(&self) {
        // The sender goes only after it has told.
        let _ = self.ended.clone().wait_for(|has_ended| *has_ended).await;
    }

    pub(crate) fn ask_to_end(&self) {
        if let Some(child) = &self.child {
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
        }
    }

    /// Kills it, unless it has ended, and all that is its own; tells how it ended and what it last said. One that is not
    /// gone after `patience` is not waited for.
    pub(crate) async fn end(mut self, patience: Duration) -> (Option<Ended>, Vec<String>) {
        self.kill();
        let _ = tokio::time::timeout(patience, self.ended()).await;
        let waited = self.child.as_mut().map(Child::try_wait);
        if !matches!(waited, Some(Ok(None))) {
            // Also if somebody else has waited for it (`ECHILD`): its number may be another's by now.
            self.child = None;
        }
        let ended = waited.and_then(std::io::Result::ok).flatten().map(Ended::from);
        let said = self.said.last_lines().await;
        (ended, said)
    }

    fn kill(&mut self) {
        let Some(child) = &mut self.child else { return };
        let _ = child.kill();
        let session = Pid::from_child(child).as_raw_nonzero().get();
        let mut killed: Vec<Seen> = Vec::new();
        for _ in 0..MOST_LOOKS {
            let is_new = |seen: &Seen| seen.session == session && seen.is_alive && !killed.contains(seen);
            let found: Vec<Seen> = see_all().into_iter().filter(is_new).collect();
            if found.is_empty() {
                break;
            }
            for process in found.iter().filter_map(open) {
                let _ = pidfd_send_signal(process, Signal::KILL);
            }
            killed.extend(found);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
        if let Some(child) = self.child.take() {
            reap(child);
        }
    }
}

/// Makes this process, which is a worker, lead a session of its own: what it starts can then be told from everything
/// else, and a signal of the supervisor's terminal is the supervisor's alone to act on.
pub fn lead_session() {
    // Refused only to one that leads a group, and that is one which somebody has started otherwise.
    let _ = setsid();
}

/// Waits for a process that was killed, in a thread of its own: one that is stuck in the kernel must not hold up the
/// supervisor.
fn reap(mut child: Child) {
    let _ = std::thread::Builder::new().name("ringfence-worker-reap".into()).spawn(move || child.wait());
}

/// Held by a descriptor: a number may be another's by the time that it is used.
fn open(seen: &Seen) -> Option<OwnedFd> {
    let process = pidfd_open(Pid::from_raw(seen.pid)?, PidfdFlags::empty()).ok()?;
    // Still the one that was seen.
    see(seen.pid).is_some_and(|now| now.started == seen.started).then_some(process)
}

/// Detached: it ends with the process, which is killed when its [`Worker`] is dropped.
fn watch_end(child: &Child) -> Result<watch::Receiver<bool>> {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let (sender, ended) = watch::channel(false);
    std::thread::Builder::new().name("ringfence-worker-end".into()).spawn(move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while matches!(waitid(WaitId::PidFd(process.as_fd()), options), Err(Errno::INTR)) {}
        sender.send_replace(true);
    })?;
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn start(script: &str) -> Worker {
        let options = Options { arguments: vec!["-c".into(), script.into()], ..Options::new("/bin/sh") };
        Worker::start(&options, ringfence_mcp::handover::pair().unwrap().1, Identity::unique()).unwrap()
    }

    async fn eventually<T>(mut found: impl FnMut() -> Option<T>) -> T {
        let search = async {
            loop {
                match found() {
                    Some(found) => return found,
                    None => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        tokio::time::timeout(PATIENCE, search).await.expect("it is never so")
    }

    fn is_alive(pid: i32) -> bool {
        see(pid).is_some_and(|seen| seen.is_alive)
    }

    #[tokio::test]
    async fn its_end_and_its_last_words_are_known() {
        let worker = start("echo one >&2; echo two >&2; exit 3");
        worker.ended().await;
        let (ended, said) = worker.end(PATIENCE).await;
        assert_eq!(ended, Some(Ended { exit_code: Some(3), signal: None }));
        assert_eq!(said, ["one", "two"]);
    }

    /// One process of its group, one of a group of its own whose parent is gone, and one that leads a session.
    const FAMILY: &str = "exec setsid sh -c '
        setsid sleep 1000 & echo $! >&2
        (python3 -c \"import os, time; os.setpgid(0, 0); print(os.getpid(), flush=True); time.sleep(1000)\" >&2 &)
        sleep 1000 & echo $! >&2
        wait'";

    async fn ends_with_its_own(by_itself: bool) {
        let worker = start(FAMILY);
        let pid = i32::try_from(worker.pid()).unwrap();
        let said = eventually(|| Some(worker.said.heard()).filter(|lines| lines.len() == 3)).await;
        let numbers = said.iter().map(|line| line.parse::<i32>().unwrap());
        let (apart, own): (Vec<i32>, Vec<i32>) =
            numbers.partition(|pid| see(*pid).is_some_and(|seen| seen.session == *pid));
        assert_eq!((apart.len(), own.len()), (1, 2));
        if by_itself {
            kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
            worker.ended().await;
        }
        let (ended, _) = worker.end(PATIENCE).await;
        assert_eq!(ended, Some(Ended { exit_code: None, signal: Some(9) }));
        eventually(|| (!own.iter().any(|pid| is_alive(*pid))).then_some(())).await;
        assert!(is_alive(apart[0]), "the launcher of sandboxes would be gone");
        let _ = kill_process(Pid::from_raw(apart[0]).unwrap(), Signal::KILL);
    }

    #[tokio::test]
    async fn it_is_killed_with_its_own_but_not_with_what_leads_a_session() {
        ends_with_its_own(false).await;
    }

    #[tokio::test]
    async fn what_it_leaves_when_it_dies_is_killed_too() {
        ends_with_its_own(true).await;
    }

    #[tokio::test]
    async fn one_that_another_has_waited_for_has_ended() {
        let worker = start("exit 0");
        let pid = Pid::from_raw(worker.pid().try_into().unwrap());
        rustix::process::waitpid(pid, rustix::process::WaitOptions::empty()).unwrap();
        let (ended, _) = worker.end(PATIENCE).await;
        assert_eq!(ended, None);
    }

    #[tokio::test]
    async fn dropped_it_is_gone() {
        let worker = start("sleep 1000");
        let pid = i32::try_from(worker.pid()).unwrap();
        drop(worker);
        // Reaped too.
        eventually(|| see(pid).is_none().then_some(())).await;
    }
}
