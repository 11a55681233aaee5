//! One worker process: its connections come over its standard input, what it says on standard error is read to the end.
//!
//! It leads a process group. What it has started in groups of their own is found below it; the launcher of its
//! sandboxes, which leads a session, is not its own: it waits with its sandboxes for the next worker.

use std::io::Result;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, pidfd_open, pidfd_send_signal,
    waitid,
};
use tokio::sync::watch;

use super::options::Options;
use super::said::Said;
use crate::scope::SCOPE_FILE_VARIABLE;

/// The variable that tells a worker whose it is: its connections come over its standard input, and it ends with that
/// process.
pub const SUPERVISOR_VARIABLE: &str = "RINGFENCE_SUPERVISOR_PID";

/// What a service manager has said to the supervisor is not meant for its worker.
const NOT_PASSED_ON: [&str; 6] =
    ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// A process that was killed is gone at once, unless the kernel is stuck.
const DEATH: Duration = Duration::from_secs(5);

/// Dropped, it is killed with all that is its own.
pub(super) struct Worker {
    child: Child,
    ended: watch::Receiver<bool>,
    said: Said,
    is_reaped: bool,
}

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) exit_code: Option<i32>,
    pub(super) signal: Option<i32>,
}

impl From<ExitStatus> for Ended {
    fn from(status: ExitStatus) -> Self {
        Self { exit_code: status.code(), signal: status.signal() }
    }
}

impl Worker {
    /// `channel` is its end of that on which connections come.
    pub(super) fn start(options: &Options, channel: OwnedFd) -> Result<Self> {
        let mut command = Command::new(&options.program);
        for name in NOT_PASSED_ON {
            command.env_remove(name);
        }
        let mut child = command
            .args(&options.arguments)
            .envs(options.variables.iter().map(|(name, value)| (name, value)))
            .envs(options.scope_file.iter().map(|path| (SCOPE_FILE_VARIABLE, path)))
            .env(SUPERVISOR_VARIABLE, std::process::id().to_string())
            .stdin(Stdio::from(channel))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let stderr = child.stderr.take().map(OwnedFd::from);
        let watched = watch_end(&child).and_then(|ended| Ok((ended, Said::listen(stderr, options.log.clone())?)));
        match watched {
            Ok((ended, said)) => Ok(Self { child, ended, said, is_reaped: false }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has ended. It is not reaped yet: its number still stands for its group.
    pub(super) async fn ended(&self) {
        // The sender goes only after it has told.
        let _ = self.ended.clone().wait_for(|has_ended| *has_ended).await;
    }

    pub(super) fn ask_to_end(&self) {
        if !self.is_reaped {
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
    }

    /// Kills it and all that is its own, unless it has ended, and tells how it ended and what it last said.
    pub(super) async fn end(mut self) -> (Option<Ended>, Vec<String>) {
        self.kill();
        let _ = tokio::time::timeout(DEATH, self.ended()).await;
        let ended = self.child.try_wait().ok().flatten().map(Ended::from);
        self.is_reaped = ended.is_some();
        let said = self.said.last_lines().await;
        (ended, said)
    }

    fn kill(&self) {
        if self.is_reaped {
            return;
        }
        let leader = Pid::from_child(&self.child);
        for process in below(leader) {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
        let _ = kill_process_group(leader, Signal::KILL);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.is_reaped {
            self.kill();
            let _ = self.child.wait();
        }
    }
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

/// What a process has started, and what that has, within its own session. Held by descriptors: a number may be another's
/// by the time that it is used.
fn below(root: Pid) -> Vec<OwnedFd> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let all: Vec<Relation> = numbers.filter_map(relation).collect();
    let root = root.as_raw_nonzero().get();
    let Some(session) = all.iter().find(|found| found.pid == root).map(|found| found.session) else {
        return Vec::new();
    };
    let mut known = vec![root];
    let mut at = 0;
    while let Some(parent) = known.get(at).copied() {
        known.extend(all.iter().filter(|it| it.parent == parent && it.session == session).map(|it| it.pid));
        at += 1;
    }
    let open = |pid: &i32| {
        let process = pidfd_open(Pid::from_raw(*pid)?, PidfdFlags::empty()).ok()?;
        // Still the one that was seen.
        relation(*pid).is_some_and(|now| all.contains(&now)).then_some(process)
    };
    known.iter().skip(1).filter_map(open).collect()
}

/// Where a process stands among others.
#[derive(PartialEq, Eq)]
struct Relation {
    pid: i32,
    parent: i32,
    session: i32,
}

/// See `proc_pid_stat(5)`. The name, which may hold anything, ends with the last bracket.
fn relation(pid: i32) -> Option<Relation> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(1);
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    Some(Relation { pid, parent, session })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(script: &str) -> Options {
        Options { arguments: vec!["-c".into(), script.into()], ..Options::new("/bin/sh") }
    }

    fn channel() -> OwnedFd {
        crate::handover::pair().unwrap().1
    }

    #[tokio::test]
    async fn its_end_and_its_last_words_are_known() {
        let worker = Worker::start(&options("echo one >&2; echo two >&2; exit 3"), channel()).unwrap();
        worker.ended().await;
        let (ended, said) = worker.end().await;
        assert_eq!(ended, Some(Ended { exit_code: Some(3), signal: None }));
        assert_eq!(said, ["one", "two"]);
    }

    #[tokio::test]
    async fn it_is_killed_with_its_own_but_not_with_what_leads_a_session() {
        let script = "setsid sleep 1000 & echo $! >&2; \
                      (python3 -c 'import os, time; os.setpgid(0, 0); print(os.getpid(), flush=True); time.sleep(1000)' >&2) & \
                      sleep 1000 & echo $! >&2; wait";
        let worker = Worker::start(&options(script), channel()).unwrap();
        let numbers = loop {
            let lines = worker.said.heard();
            if lines.len() == 3 {
                break lines;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let alive = |pid: &String| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
        };
        let leads_a_session = |pid: &&String| {
            let pid: i32 = pid.parse().unwrap();
            relation(pid).is_some_and(|found| found.session == pid)
        };
        let (apart, own): (Vec<&String>, Vec<&String>) = numbers.iter().partition(leads_a_session);
        assert_eq!((apart.len(), own.len()), (1, 2));
        let (ended, _) = worker.end().await;
        assert_eq!(ended, Some(Ended { exit_code: None, signal: Some(9) }));
        while own.iter().any(|pid| alive(pid)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(alive(apart[0]), "the launcher of sandboxes would be gone");
        let _ = kill_process(Pid::from_raw(apart[0].parse().unwrap()).unwrap(), Signal::KILL);
    }

    #[tokio::test]
    async fn dropped_it_is_gone() {
        let worker = Worker::start(&options("sleep 1000"), channel()).unwrap();
        let pid = i32::try_from(worker.pid()).unwrap();
        drop(worker);
        assert!(relation(pid).is_none());
    }
}
