//! One worker process. It receives connections over its stdin, and its stderr is read to the end.
//!
//! A worker is the leader of a session ([`become_session_leader`]), so that the processes that it started can be found and
//! killed after its death. The launcher of its sandboxes leads another session and is not killed: it waits with the
//! sandboxes for the next worker.

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
use crate::stderr_tail::StderrReader;
use ringfence_backend::process_table::{ProcessEntry, read_process, read_processes};
use ringfence_backend::{SUPERVISOR_ID_VARIABLE, SupervisorId};
use ringfence_config::SCOPE_FILE_VARIABLE;

/// The environment variable with the process id of the supervisor. A worker that has it receives connections over its
/// stdin and ends with that process.
pub const SUPERVISOR_VARIABLE: &str = "RINGFENCE_SUPERVISOR_PID";

/// Variables of the service manager that are meant for the supervisor, not for the worker.
const REMOVED_VARIABLES: [&str; 6] =
    ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// Maximum number of searches for processes of a worker, since they may start others while they are killed.
const MAX_KILL_ROUNDS: usize = 16;

/// A running worker. It is killed with all processes of its session when this is dropped.
pub(crate) struct Worker {
    pid: u32,
    /// None once it is reaped.
    child: Option<Child>,
    exited: watch::Receiver<bool>,
    stderr: StderrReader,
}

/// The exit status of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WorkerExit {
    pub(crate) exit_code: Option<i32>,
    pub(crate) signal: Option<i32>,
}

impl From<ExitStatus> for WorkerExit {
    fn from(status: ExitStatus) -> Self {
        Self { exit_code: status.code(), signal: status.signal() }
    }
}

impl Worker {
    /// Starts a worker that receives connections over `channel`. Must be called on a thread that outlives the worker: the
    /// kernel kills the worker when the thread that started it exits.
    pub(crate) fn start(options: &Options, channel: OwnedFd, supervisor: SupervisorId) -> Result<Self> {
        let mut command = Command::new(&options.program);
        for name in REMOVED_VARIABLES {
            command.env_remove(name);
        }
        let mut child = command
            .args(&options.arguments)
            .envs(options.variables.iter().map(|(name, value)| (name, value)))
            .envs(options.scope_file.iter().map(|path| (SCOPE_FILE_VARIABLE, path)))
            .env(SUPERVISOR_VARIABLE, std::process::id().to_string())
            .env(SUPERVISOR_ID_VARIABLE, supervisor.to_string())
            .stdin(Stdio::from(channel))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let stderr = child.stderr.take().map(OwnedFd::from);
        let watched =
            watch_exit(&child).and_then(|exited| Ok((exited, StderrReader::start(stderr, options.log.clone())?)));
        match watched {
            Ok((exited, stderr)) => Ok(Self { pid: child.id(), child: Some(child), exited, stderr }),
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

    /// Waits until the worker has exited. It is not reaped yet, so its process id still identifies its session.
    pub(crate) async fn exited(&self) {
        // The sender is dropped only after it has sent true.
        let _ = self.exited.clone().wait_for(|has_exited| *has_exited).await;
    }

    pub(crate) fn terminate(&self) {
        if let Some(child) = &self.child {
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
        }
    }

    /// Kills the worker, unless it has exited, and all processes of its session. Returns its exit status, if it exits within
    /// the timeout, and the last lines of its stderr.
    pub(crate) async fn kill(mut self, timeout: Duration) -> (Option<WorkerExit>, Vec<String>) {
        self.kill_processes();
        let _ = tokio::time::timeout(timeout, self.exited()).await;
        let waited = self.child.as_mut().map(Child::try_wait);
        if !matches!(waited, Some(Ok(None))) {
            // Also after `ECHILD`, if something else has reaped it: its process id may be reused by now.
            self.child = None;
        }
        let exit = waited.and_then(std::io::Result::ok).flatten().map(WorkerExit::from);
        (exit, self.stderr.last_lines().await)
    }

    fn kill_processes(&mut self) {
        let Some(child) = &mut self.child else { return };
        let _ = child.kill();
        let session = Pid::from_child(child).as_raw_nonzero().get();
        let mut killed: Vec<ProcessEntry> = Vec::new();
        for _ in 0..MAX_KILL_ROUNDS {
            let is_new = |seen: &ProcessEntry| seen.session == session && seen.is_alive && !killed.contains(seen);
            let found: Vec<ProcessEntry> = read_processes().into_iter().filter(is_new).collect();
            if found.is_empty() {
                break;
            }
            for process in found.iter().filter_map(open_pidfd) {
                let _ = pidfd_send_signal(process, Signal::KILL);
            }
            killed.extend(found);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill_processes();
        if let Some(child) = self.child.take() {
            reap(child);
        }
    }
}

/// Makes this process, a worker, the leader of a new session. The processes that it starts can then be identified, and
/// signals of the terminal reach only the supervisor.
pub fn become_session_leader() {
    // Fails only for the leader of a process group, which a supervisor never starts.
    let _ = setsid();
}

/// Reaps a killed process in a separate thread, since a process that is stuck in the kernel must not block the supervisor.
fn reap(mut child: Child) {
    let _ = std::thread::Builder::new().name("ringfence-worker-reap".into()).spawn(move || child.wait());
}

/// Opens a descriptor of a process, since its process id may be reused before the signal is sent.
fn open_pidfd(seen: &ProcessEntry) -> Option<OwnedFd> {
    let process = pidfd_open(Pid::from_raw(seen.pid)?, PidfdFlags::empty()).ok()?;
    // Verifies that the id still belongs to the same process.
    read_process(seen.pid).is_some_and(|now| now.started == seen.started).then_some(process)
}

/// Waits for the exit in a detached thread, which ends with the process.
fn watch_exit(child: &Child) -> Result<watch::Receiver<bool>> {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let (sender, exited) = watch::channel(false);
    std::thread::Builder::new().name("ringfence-worker-end".into()).spawn(move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while matches!(waitid(WaitId::PidFd(process.as_fd()), options), Err(Errno::INTR)) {}
        sender.send_replace(true);
    })?;
    Ok(exited)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    fn start(script: &str) -> Worker {
        let options = Options { arguments: vec!["-c".into(), script.into()], ..Options::new("/bin/sh") };
        Worker::start(&options, ringfence_mcp::handover::pair().unwrap().1, SupervisorId::unique()).unwrap()
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
        tokio::time::timeout(TIMEOUT, search).await.expect("the condition is met in time")
    }

    fn is_alive(pid: i32) -> bool {
        read_process(pid).is_some_and(|seen| seen.is_alive)
    }

    #[tokio::test]
    async fn exit_status_and_stderr_are_returned() {
        let worker = start("echo one >&2; echo two >&2; exit 3");
        worker.exited().await;
        let (exit, stderr) = worker.kill(TIMEOUT).await;
        assert_eq!(exit, Some(WorkerExit { exit_code: Some(3), signal: None }));
        assert_eq!(stderr, ["one", "two"]);
    }

    /// Starts a process in the same group, one in another group whose parent has exited, and one that leads a session.
    const PROCESSES: &str = "exec setsid sh -c '
        setsid sleep 1000 & echo $! >&2
        (python3 -c \"import os, time; os.setpgid(0, 0); print(os.getpid(), flush=True); time.sleep(1000)\" >&2 &)
        sleep 1000 & echo $! >&2
        wait'";

    async fn assert_session_is_killed(dies_first: bool) {
        let worker = start(PROCESSES);
        let pid = i32::try_from(worker.pid()).unwrap();
        let stderr = eventually(|| Some(worker.stderr.lines()).filter(|lines| lines.len() == 3)).await;
        let pids = stderr.iter().map(|line| line.parse::<i32>().unwrap());
        let (leaders, members): (Vec<i32>, Vec<i32>) =
            pids.partition(|pid| read_process(*pid).is_some_and(|seen| seen.session == *pid));
        assert_eq!((leaders.len(), members.len()), (1, 2));
        if dies_first {
            kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
            worker.exited().await;
        }
        let (exit, _) = worker.kill(TIMEOUT).await;
        assert_eq!(exit, Some(WorkerExit { exit_code: None, signal: Some(9) }));
        eventually(|| (!members.iter().any(|pid| is_alive(*pid))).then_some(())).await;
        assert!(is_alive(leaders[0]), "a launcher of sandboxes would be killed");
        let _ = kill_process(Pid::from_raw(leaders[0]).unwrap(), Signal::KILL);
    }

    #[tokio::test]
    async fn kill_includes_session_of_worker_but_no_other_session() {
        assert_session_is_killed(false).await;
    }

    #[tokio::test]
    async fn session_of_dead_worker_is_killed() {
        assert_session_is_killed(true).await;
    }

    #[tokio::test]
    async fn worker_that_was_reaped_elsewhere_has_no_exit_status() {
        let worker = start("exit 0");
        let pid = Pid::from_raw(worker.pid().try_into().unwrap());
        rustix::process::waitpid(pid, rustix::process::WaitOptions::empty()).unwrap();
        let (exit, _) = worker.kill(TIMEOUT).await;
        assert_eq!(exit, None);
    }

    #[tokio::test]
    async fn dropped_worker_is_killed_and_reaped() {
        let worker = start("sleep 1000");
        let pid = i32::try_from(worker.pid()).unwrap();
        drop(worker);
        eventually(|| read_process(pid).is_none().then_some(())).await;
    }
}
