//! The long-lived processes of one session: started, heard of, remembered within bounds.
//!
//! The session's task hears all that the init says; what concerns these processes is handed over here. Nothing of
//! their output is kept in memory but the tail of standard error: what nobody reads of standard output stays in its
//! pipe, and then the process waits.

use ringfence_core::sync::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use ringfence_core::{Command, WORKSPACE};
use ringfence_sandbox::{Control, Event, ExitStatus, SignalTarget, pipe};
use rustix::process::Signal;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::streams::Streams;
use ringfence_core::{Failure, Kind, now_ms};
use serde::Serialize;

/// Processes that may run in a session at a time; of those that have ended as many are remembered.
const MOST_PROCESSES: usize = 16;

/// What is kept of standard error.
const STDERR_TAIL: usize = 64 << 10;

/// Between two reads of it.
const BETWEEN_READS: Duration = Duration::from_millis(50);

/// Arguments and variables together; a frame to the init holds several times as much.
const MOST_ARGUMENT_BYTES: usize = 64 << 10;

/// From here on the init's numbers are those of these processes; calls and kernels count from 1.
const FIRST: u32 = 1 << 31;

/// A process to start.
#[derive(Debug, Clone)]
pub struct ProcessRequest {
    pub argv: Vec<OsString>,
    /// Besides what every process of the session has.
    pub environment: BTreeMap<String, String>,
    /// The workspace if none is given; relative to it otherwise.
    pub workdir: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessStatus {
    Running,
    Exited,
}

/// How it stands with a process.
#[derive(Debug, Clone, Serialize)]
pub struct ProcessInfo {
    /// The server's own number, not the guest's.
    pub pid: u32,
    pub argv: Vec<String>,
    pub status: ProcessStatus,
    /// 128 and the signal's number if a signal ended it; none if it went with its session.
    pub exit_code: Option<i32>,
    /// Seconds since the epoch.
    pub started: u64,
    pub ended: Option<u64>,
    /// The last of what it wrote to standard error.
    pub stderr_tail: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    Starting,
    Running,
    Refused(String),
    /// With the code, unless it went with its session.
    Ended(Option<i32>, u64),
}

impl State {
    pub fn is_running(&self) -> bool {
        matches!(self, Self::Starting | Self::Running)
    }
}

/// One process.
pub struct Managed {
    pub pid: u32,
    argv: Vec<String>,
    started: u64,
    pub state: watch::Sender<State>,
    stderr: Receiver,
    tail: Mutex<VecDeque<u8>>,
    pub streams: Arc<tokio::sync::Mutex<Streams>>,
}

impl Managed {
    pub fn info(&self) -> ProcessInfo {
        let (exit_code, ended) = match *self.state.borrow() {
            State::Ended(code, at) => (code, Some(at)),
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
        /// Others may hold its standard error and write on.
        const MOST_READS: usize = 16;
        // What it said last must be there for whoever hears of its end.
        for _ in 0..MOST_READS {
            if !matches!(self.take_stderr(), Ok(1..)) {
                break;
            }
        }
        self.state.send_if_modified(|state| {
            let runs = state.is_running();
            if runs {
                *state = State::Ended(code, now_ms() / 1000);
            }
            runs
        });
    }

    /// Reads standard error until its end or the session's.
    async fn keep_tail(self: Arc<Self>, session_ended: CancellationToken) {
        loop {
            tokio::select! {
                () = session_ended.cancelled() => return,
                ready = self.stderr.readable() => if ready.is_err() { return },
            }
            // Clears the readiness where there was nothing after all.
            let taken = self.stderr.try_io(|| self.take_stderr());
            match taken {
                Ok(0) => return,
                // One who writes without end waits most of the time, and does not keep the host busy.
                Ok(_) => sleep(BETWEEN_READS).await,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(_) => return,
            }
        }
    }

    /// Reads once. Under the lock, so that what two readers take stays in order.
    fn take_stderr(&self) -> std::io::Result<usize> {
        let mut tail = self.tail.lock();
        let mut buffer = vec![0; STDERR_TAIL];
        let length = rustix::io::read(&self.stderr, &mut buffer)?;
        tail.extend(&buffer[..length]);
        let over = tail.len().saturating_sub(STDERR_TAIL);
        tail.drain(..over);
        Ok(length)
    }
}

/// All of a session.
pub struct Processes {
    control: Arc<Control>,
    environment: BTreeMap<String, String>,
    table: Mutex<Table>,
    ended: CancellationToken,
}

#[derive(Default)]
struct Table {
    last: u32,
    managed: BTreeMap<u32, Arc<Managed>>,
}

impl Processes {
    pub fn new(control: Arc<Control>, environment: BTreeMap<String, String>) -> Arc<Self> {
        Arc::new(Self { control, environment, table: Mutex::default(), ended: CancellationToken::new() })
    }

    /// Numbers them from where no owner before has: what it has told of may still be asked for.
    pub fn count_from(&self, last: u32) {
        self.table().last = last;
    }

    /// Orders the start; its state says what comes of it.
    pub fn start(&self, request: &ProcessRequest, tasks: &TaskTracker) -> Result<Arc<Managed>, Failure> {
        let (command, environment) = self.check(request)?;
        let failed = |error: String| Failure::new(Kind::Internal, format!("no process could be started: {error}"));
        let streams = pipe::standard_streams().map_err(|errno| failed(errno.to_string()))?;
        let (theirs, [to_stdin, from_stdout, from_stderr]) = streams;
        let streams = Streams::new(to_stdin, from_stdout).map_err(|error| failed(error.to_string()))?;
        let from_stderr = Receiver::from_owned_fd(from_stderr).map_err(|error| failed(error.to_string()))?;

        let mut table = self.table();
        if self.ended.is_cancelled() {
            return Err(Failure::new(Kind::Connection, "the session is ending"));
        }
        if table.managed.values().filter(|process| process.state.borrow().is_running()).count() >= MOST_PROCESSES {
            return Err(Failure::new(Kind::ResourceLimit, format!("{MOST_PROCESSES} processes run in this session"))
                .hint("end one of them first, or use another session"));
        }
        table.last += 1;
        let process = Arc::new(Managed {
            pid: table.last,
            argv: request.argv.iter().map(|argument| argument.to_string_lossy().into_owned()).collect(),
            started: now_ms() / 1000,
            state: watch::Sender::new(State::Starting),
            stderr: from_stderr,
            tail: Mutex::default(),
            streams: Arc::new(tokio::sync::Mutex::new(streams)),
        });
        table.managed.insert(process.pid, Arc::clone(&process));
        table.forget_oldest();
        drop(table);
        let descriptors = theirs.each_ref().map(AsFd::as_fd);
        if let Err(error) = self.control.spawn(FIRST + process.pid, &command, &environment, &descriptors) {
            self.forget(process.pid);
            return Err(Failure::new(Kind::Validation, error.to_string()));
        }
        tasks.spawn(Arc::clone(&process).keep_tail(self.ended.clone()));
        Ok(process)
    }

    fn check(&self, request: &ProcessRequest) -> Result<(Command, BTreeMap<String, String>), Failure> {
        let invalid = |message: &str| Failure::new(Kind::Validation, message);
        if request.argv.first().is_none_or(|program| program.is_empty()) {
            return Err(invalid("argv is empty").hint("send the program and its arguments, or a command"));
        }
        let arguments: usize = request.argv.iter().map(|argument| argument.len()).sum();
        let variables: usize = request.environment.iter().map(|(name, value)| name.len() + value.len()).sum();
        if arguments + variables > MOST_ARGUMENT_BYTES || request.argv.len() + request.environment.len() > 4096 {
            return Err(invalid("the arguments and variables are too long: at most 64 KiB together")
                .hint("put them into a file with write_file"));
        }
        let odd = |name: &String| name.is_empty() || name.contains(['=', '\0']);
        if request.environment.keys().any(odd) || request.environment.values().any(|value| value.contains('\0')) {
            return Err(invalid("a variable is empty, or has `=` or NUL in its name").with("field", "env"));
        }
        let mut environment = self.environment.clone();
        environment.extend(request.environment.clone());
        let workdir = Path::new(WORKSPACE).join(request.workdir.as_deref().unwrap_or(Path::new("")));
        Ok((Command { argv: request.argv.clone(), workdir }, environment))
    }

    /// Takes what concerns these processes; gives back what does not.
    pub fn hear(&self, event: Event) -> Option<Event> {
        let (Event::Started { process } | Event::StartFailed { process, .. } | Event::Ended { process, .. }) = event
        else {
            return Some(event);
        };
        let Some(pid) = process.checked_sub(FIRST) else { return Some(event) };
        if let Some(managed) = self.find(pid) {
            match event {
                Event::Started { .. } => {
                    managed.state.send_if_modified(|state| {
                        let starts = *state == State::Starting;
                        if starts {
                            *state = State::Running;
                        }
                        starts
                    });
                }
                Event::StartFailed { errno, .. } => drop(managed.state.send_replace(State::Refused(errno.to_string()))),
                Event::Ended { status: ExitStatus::Exited(code), .. } => managed.end(Some(code)),
                Event::Ended { status: ExitStatus::Killed(signal), .. } => managed.end(Some(128 + signal)),
                Event::Lost => {}
            }
        }
        None
    }

    /// The session is gone, and all of them with it.
    pub fn lose(&self) {
        self.ended.cancel();
        for process in self.all() {
            process.end(None);
        }
    }

    pub fn signal(&self, process: &Managed, signal: Signal) {
        // A sandbox that is gone says so by itself.
        let target = if signal == Signal::KILL { SignalTarget::ProcessTree } else { SignalTarget::ProcessGroup };
        let _ = self.control.signal(FIRST + process.pid, signal, target);
    }

    pub fn all(&self) -> Vec<Arc<Managed>> {
        self.table().managed.values().cloned().collect()
    }

    pub fn find(&self, pid: u32) -> Option<Arc<Managed>> {
        self.table().managed.get(&pid).cloned()
    }

    pub fn forget(&self, pid: u32) {
        self.table().managed.remove(&pid);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
}

impl Table {
    fn forget_oldest(&mut self) {
        let ended = |process: &&Arc<Managed>| !process.state.borrow().is_running();
        let over = self.managed.values().filter(ended).count().saturating_sub(MOST_PROCESSES);
        let oldest: Vec<u32> = self.managed.values().filter(ended).take(over).map(|process| process.pid).collect();
        for pid in oldest {
            self.managed.remove(&pid);
        }
    }
}
