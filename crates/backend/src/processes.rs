//! The managed processes of one instance: long-lived, independent of calls, limited in number.
//!
//! The owner of the instance receives all events and passes them here first. Only the tail of standard error is in
//! memory. Standard output stays in its pipe until a client reads it; when the pipe is full, the process waits.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use ringfence_core::sync::Mutex;
use ringfence_core::{Command, Failure, Kind, WORKSPACE, now_ms};
use ringfence_sandbox::{Control, Event, ExitStatus, SignalTarget, pipe};
use rustix::process::Signal;
use serde::Serialize;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::streams::Streams;

/// Maximum number of running processes in an instance. As many that have ended are remembered.
const MAX_PROCESSES: usize = 16;

/// Maximum number of bytes of standard error that are remembered.
const STDERR_TAIL_BYTES: usize = 64 << 10;

/// Pause between two reads of standard error.
const READ_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum size of arguments and variables together. A frame to the init can be several times as large.
const MAX_ARGUMENT_BYTES: usize = 64 << 10;

/// Maximum number of arguments and variables together.
const MAX_ARGUMENTS: usize = 4096;

/// The first number of a managed process in the frames of the init. Calls and kernels are numbered from 1.
const FIRST_NUMBER: u32 = 1 << 31;

/// A process to start.
#[derive(Debug, Clone)]
pub struct ProcessRequest {
    pub argv: Vec<OsString>,
    /// Variables in addition to those that every process of the instance has.
    pub environment: BTreeMap<String, String>,
    /// Relative to the workspace, which is the default.
    pub workdir: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessStatus {
    Running,
    Exited,
}

/// A process as clients see it.
#[derive(Debug, Clone, Serialize)]
pub struct ProcessInfo {
    /// The number that the server chose, not the pid in the guest.
    pub pid: u32,
    pub argv: Vec<String>,
    pub status: ProcessStatus,
    /// 128 and the signal's number if a signal ended it. None if it ended together with the instance.
    pub exit_code: Option<i32>,
    /// Seconds since the epoch.
    pub started: u64,
    pub ended: Option<u64>,
    /// The end of its standard error.
    pub stderr_tail: String,
}

/// The state of a managed process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessState {
    Starting,
    Running,
    /// The process could not be started, for this reason.
    Refused(String),
    /// The exit code, unless the process ended together with the instance, and the time.
    Ended(Option<i32>, u64),
}

impl ProcessState {
    pub fn is_running(&self) -> bool {
        matches!(self, Self::Starting | Self::Running)
    }
}

/// A long-lived process.
pub struct ManagedProcess {
    pub pid: u32,
    argv: Vec<String>,
    started: u64,
    pub state: watch::Sender<ProcessState>,
    stderr: Receiver,
    tail: Mutex<VecDeque<u8>>,
    pub streams: Arc<tokio::sync::Mutex<Streams>>,
}

impl ManagedProcess {
    pub fn info(&self) -> ProcessInfo {
        let (exit_code, ended) = match *self.state.borrow() {
            ProcessState::Ended(code, at) => (code, Some(at)),
            _ => (None, None),
        };
        let tail: Vec<u8> = self.tail.lock().iter().copied().collect();
        ProcessInfo {
            pid: self.pid,
            argv: self.argv.clone(),
            status: if ended.is_some() { ProcessStatus::Exited } else { ProcessStatus::Running },
            exit_code,
            started: self.started,
            ended,
            stderr_tail: String::from_utf8_lossy(&tail).into_owned(),
        }
    }

    fn end(&self, code: Option<i32>) {
        /// Other processes may have its standard error open and go on writing.
        const MAX_READS: usize = 16;
        // The last output must be in the tail before a client learns that the process has ended.
        for _ in 0..MAX_READS {
            if !matches!(self.read_stderr(), Ok(1..)) {
                break;
            }
        }
        self.state.send_if_modified(|state| {
            let was_running = state.is_running();
            if was_running {
                *state = ProcessState::Ended(code, now_ms() / 1000);
            }
            was_running
        });
    }

    /// Reads standard error until it or the instance ends.
    async fn collect_stderr(self: Arc<Self>, instance_ended: CancellationToken) {
        loop {
            tokio::select! {
                () = instance_ended.cancelled() => return,
                ready = self.stderr.readable() => if ready.is_err() { return },
            }
            // Also clears the readiness if there was nothing to read.
            match self.stderr.try_io(|| self.read_stderr()) {
                Ok(0) => return,
                // A process that writes without end is blocked most of the time, so it does not load the host.
                Ok(_) => sleep(READ_INTERVAL).await,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(_) => return,
            }
        }
    }

    /// Reads once. Under the lock, so that the bytes of two readers stay in order.
    fn read_stderr(&self) -> std::io::Result<usize> {
        let mut tail = self.tail.lock();
        let mut buffer = vec![0; STDERR_TAIL_BYTES];
        let length = rustix::io::read(&self.stderr, &mut buffer)?;
        tail.extend(&buffer[..length]);
        let excess = tail.len().saturating_sub(STDERR_TAIL_BYTES);
        tail.drain(..excess);
        Ok(length)
    }
}

/// The managed processes of one instance.
pub struct Processes {
    control: Arc<Control>,
    environment: BTreeMap<String, String>,
    table: Mutex<Table>,
    ended: CancellationToken,
}

#[derive(Default)]
struct Table {
    last: u32,
    processes: BTreeMap<u32, Arc<ManagedProcess>>,
}

impl Processes {
    pub(crate) fn new(control: Arc<Control>, environment: BTreeMap<String, String>) -> Arc<Self> {
        Arc::new(Self { control, environment, table: Mutex::default(), ended: CancellationToken::new() })
    }

    /// Numbers processes after this number. A previous owner's clients may still ask for lower numbers.
    pub(crate) fn number_after(&self, last: u32) {
        self.table().last = last;
    }

    /// Requests the start of a process. Its state becomes `Running` or `Refused`.
    pub fn start(&self, request: &ProcessRequest, tasks: &TaskTracker) -> Result<Arc<ManagedProcess>, Failure> {
        let (command, environment) = self.check(request)?;
        let failed = |error: String| Failure::new(Kind::Internal, format!("cannot start the process: {error}"));
        let streams = pipe::standard_streams().map_err(|errno| failed(errno.to_string()))?;
        let (guest_ends, [to_stdin, from_stdout, from_stderr]) = streams;
        let streams = Streams::new(to_stdin, from_stdout).map_err(|error| failed(error.to_string()))?;
        let from_stderr = Receiver::from_owned_fd(from_stderr).map_err(|error| failed(error.to_string()))?;

        let mut table = self.table();
        if self.ended.is_cancelled() {
            return Err(Failure::new(Kind::Connection, "the session is ending"));
        }
        if table.processes.values().filter(|process| process.state.borrow().is_running()).count() >= MAX_PROCESSES {
            let message = format!("the session has reached its limit of {MAX_PROCESSES} running processes");
            return Err(Failure::new(Kind::ResourceLimit, message).hint("stop one of them, or use another session"));
        }
        table.last += 1;
        let process = Arc::new(ManagedProcess {
            pid: table.last,
            argv: request.argv.iter().map(|argument| argument.to_string_lossy().into_owned()).collect(),
            started: now_ms() / 1000,
            state: watch::Sender::new(ProcessState::Starting),
            stderr: from_stderr,
            tail: Mutex::default(),
            streams: Arc::new(tokio::sync::Mutex::new(streams)),
        });
        table.processes.insert(process.pid, Arc::clone(&process));
        table.forget_oldest();
        drop(table);
        let descriptors = guest_ends.each_ref().map(AsFd::as_fd);
        if let Err(error) = self.control.spawn(FIRST_NUMBER + process.pid, &command, &environment, &descriptors) {
            self.forget(process.pid);
            return Err(Failure::new(Kind::Validation, error.to_string()));
        }
        tasks.spawn(Arc::clone(&process).collect_stderr(self.ended.clone()));
        Ok(process)
    }

    fn check(&self, request: &ProcessRequest) -> Result<(Command, BTreeMap<String, String>), Failure> {
        let invalid = |message: &str| Failure::new(Kind::Validation, message);
        if request.argv.first().is_none_or(|program| program.is_empty()) {
            return Err(invalid("argv is empty").hint("set argv to the program and its arguments, or send a command"));
        }
        let arguments: usize = request.argv.iter().map(|argument| argument.len()).sum();
        let variables: usize = request.environment.iter().map(|(name, value)| name.len() + value.len()).sum();
        let count = request.argv.len() + request.environment.len();
        if arguments + variables > MAX_ARGUMENT_BYTES || count > MAX_ARGUMENTS {
            return Err(invalid("arguments and variables exceed the limit of 64 KiB or 4096 entries together")
                .hint("write them to a file with write_file"));
        }
        let is_invalid = |name: &String| name.is_empty() || name.contains(['=', '\0']);
        if request.environment.keys().any(is_invalid) || request.environment.values().any(|value| value.contains('\0'))
        {
            return Err(invalid("a variable has an empty name, `=` or NUL in its name, or NUL in its value")
                .with("field", "env"));
        }
        let mut environment = self.environment.clone();
        environment.extend(request.environment.clone());
        let workdir = Path::new(WORKSPACE).join(request.workdir.as_deref().unwrap_or(Path::new("")));
        Ok((Command { argv: request.argv.clone(), workdir }, environment))
    }

    /// Handles an event of a managed process. Returns any other event.
    pub(crate) fn handle_event(&self, event: Event) -> Option<Event> {
        let (Event::Started { process } | Event::StartFailed { process, .. } | Event::Ended { process, .. }) = event
        else {
            return Some(event);
        };
        let Some(pid) = process.checked_sub(FIRST_NUMBER) else { return Some(event) };
        if let Some(process) = self.find(pid) {
            match event {
                Event::Started { .. } => {
                    process.state.send_if_modified(|state| {
                        let was_starting = *state == ProcessState::Starting;
                        if was_starting {
                            *state = ProcessState::Running;
                        }
                        was_starting
                    });
                }
                Event::StartFailed { errno, .. } => {
                    process.state.send_replace(ProcessState::Refused(errno.to_string()));
                }
                Event::Ended { status: ExitStatus::Exited(code), .. } => process.end(Some(code)),
                Event::Ended { status: ExitStatus::Killed(signal), .. } => process.end(Some(128 + signal)),
                Event::Lost => {}
            }
        }
        None
    }

    /// Marks all processes as ended, because the instance has ended.
    pub(crate) fn end_all(&self) {
        self.ended.cancel();
        for process in self.all() {
            process.end(None);
        }
    }

    /// Sends a signal to the group of a process; a kill, to all of its descendants. If the instance has ended, the
    /// state of the process says so.
    pub fn signal(&self, process: &ManagedProcess, signal: Signal) {
        let target = if signal == Signal::KILL { SignalTarget::ProcessTree } else { SignalTarget::ProcessGroup };
        let _ = self.control.signal(FIRST_NUMBER + process.pid, signal, target);
    }

    /// The processes that run, and the last ones that have ended.
    pub fn all(&self) -> Vec<Arc<ManagedProcess>> {
        self.table().processes.values().cloned().collect()
    }

    pub fn find(&self, pid: u32) -> Option<Arc<ManagedProcess>> {
        self.table().processes.get(&pid).cloned()
    }

    /// Removes a process from the table.
    pub fn forget(&self, pid: u32) {
        self.table().processes.remove(&pid);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
}

impl Table {
    fn forget_oldest(&mut self) {
        let has_ended = |process: &&Arc<ManagedProcess>| !process.state.borrow().is_running();
        let excess = self.processes.values().filter(has_ended).count().saturating_sub(MAX_PROCESSES);
        let oldest: Vec<u32> =
            self.processes.values().filter(has_ended).take(excess).map(|process| process.pid).collect();
        for pid in oldest {
            self.processes.remove(&pid);
        }
    }
}
