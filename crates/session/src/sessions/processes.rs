//! Managed processes of sessions: started, listed, attached to and stopped by callers.

use std::sync::Arc;
use std::time::Duration;

use ringfence_backend::{Input, Lines, ManagedProcess, ProcessInfo, ProcessRequest, ProcessState, Streams};
use ringfence_core::{AuditKind, Failure, Kind, Principal, SessionId};
use rustix::process::Signal;
use tokio::sync::{OwnedMutexGuard, watch};
use tokio::time::timeout;

use super::{Sessions, events};
use crate::session::SessionHandle;
use crate::state::{SessionState, UseGuard};

/// Timeout for the start of a process, and for its end after each signal.
const TIMEOUT: Duration = Duration::from_secs(5);

impl Sessions {
    /// Starts a process that runs until it ends, is stopped, or its session ends.
    pub async fn start_process(
        &self,
        principal: &Principal,
        id: &SessionId,
        request: ProcessRequest,
    ) -> Result<ProcessInfo, Failure> {
        let started = self.try_start(principal, id, request).await;
        let info = started.map_err(|failure| self.refused(principal, Some(id), failure))?;
        self.0.audit.record(events::process(AuditKind::ProcessStarted, principal, id, info.pid));
        Ok(info)
    }

    async fn try_start(
        &self,
        principal: &Principal,
        id: &SessionId,
        request: ProcessRequest,
    ) -> Result<ProcessInfo, Failure> {
        let handle = self.find(principal, id)?;
        handle.state.touch();
        let process = handle.instance.processes.start(&request, self.tasks())?;
        let mut state = process.state.subscribe();
        let started = timeout(TIMEOUT, state.wait_for(|state| *state != ProcessState::Starting)).await;
        match started.map(|state| state.map(|state| state.clone())) {
            Ok(Ok(ProcessState::Refused(reason))) => {
                handle.instance.processes.forget(process.pid);
                Err(Failure::new(Kind::Validation, format!("the process could not be started: {reason}"))
                    .hint("use a program of the sandbox, with its full path or a name on its PATH")
                    .hint("the workdir must exist"))
            }
            Ok(Ok(_)) => Ok(process.info()),
            Ok(Err(_)) => Err(Failure::session_not_found(id)),
            Err(_) => {
                handle.instance.processes.signal(&process, Signal::KILL);
                Err(Failure::new(Kind::Connection, "the sandbox did not start the process in time").hint("try again"))
            }
        }
    }

    /// The processes of a session.
    pub fn list_processes(&self, principal: &Principal, id: &SessionId) -> Result<Vec<ProcessInfo>, Failure> {
        let handle = self.find(principal, id).map_err(|failure| self.refused(principal, Some(id), failure))?;
        Ok(handle.instance.processes.all().iter().map(|process| process.info()).collect())
    }

    /// One process of a session.
    pub fn process(&self, principal: &Principal, id: &SessionId, pid: u32) -> Result<ProcessInfo, Failure> {
        let found = self.find_process(principal, id, pid);
        Ok(found.map_err(|failure| self.refused(principal, Some(id), failure))?.1.info())
    }

    /// Ends a process, with SIGTERM and then SIGKILL, and forgets it.
    pub async fn stop_process(&self, principal: &Principal, id: &SessionId, pid: u32) -> Result<ProcessInfo, Failure> {
        let stopped = self.try_stop(principal, id, pid).await;
        let info = stopped.map_err(|failure| self.refused(principal, Some(id), failure))?;
        self.0.audit.record(events::process(AuditKind::ProcessStopped, principal, id, pid));
        Ok(info)
    }

    async fn try_stop(&self, principal: &Principal, id: &SessionId, pid: u32) -> Result<ProcessInfo, Failure> {
        let (handle, process) = self.find_process(principal, id, pid)?;
        let processes = handle.instance.processes;
        let mut state = process.state.subscribe();
        for signal in [Signal::TERM, Signal::KILL] {
            if state.borrow().is_running() {
                processes.signal(&process, signal);
                let _ = timeout(TIMEOUT, state.wait_for(|state| !state.is_running())).await;
            }
        }
        if state.borrow().is_running() {
            return Err(Failure::new(Kind::Connection, format!("process {pid} did not end in time")).hint("try again"));
        }
        processes.forget(pid);
        Ok(process.info())
    }

    /// Attaches to the standard input and output of a process. Only one caller can be attached.
    pub fn attach(&self, principal: &Principal, id: &SessionId, pid: u32) -> Result<Attachment, Failure> {
        self.try_attach(principal, id, pid).map_err(|failure| self.refused(principal, Some(id), failure))
    }

    fn try_attach(&self, principal: &Principal, id: &SessionId, pid: u32) -> Result<Attachment, Failure> {
        let (handle, process) = self.find_process(principal, id, pid)?;
        let guard = handle.state.begin_use().ok_or_else(|| Failure::session_not_found(id))?;
        let streams = Arc::clone(&process.streams).try_lock_owned().map_err(|_| {
            Failure::new(Kind::ResourceLimit, format!("another client is attached to process {pid}"))
                .hint("close the other connection first")
        })?;
        self.0.audit.record(events::process(AuditKind::ProcessAttached, principal, id, pid));
        Ok(Attachment { streams, process, state: handle.state, _guard: guard })
    }

    fn find_process(
        &self,
        principal: &Principal,
        id: &SessionId,
        pid: u32,
    ) -> Result<(SessionHandle, Arc<ManagedProcess>), Failure> {
        let handle = self.find(principal, id)?;
        handle.state.touch();
        let process = handle.instance.processes.find(pid).ok_or_else(|| {
            Failure::new(Kind::NotFound, format!("the session has no process {pid}"))
                .hint("list the session's processes")
                .hint("processes end with the server that started them: start it again after a restart")
        })?;
        Ok((handle, process))
    }
}

/// Exclusive use of the streams of a process. Dropping it detaches; the process goes on.
pub struct Attachment {
    streams: OwnedMutexGuard<Streams>,
    process: Arc<ManagedProcess>,
    state: Arc<SessionState>,
    /// While a client is attached, the session is not idle.
    _guard: UseGuard,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.state.touch();
    }
}

impl Attachment {
    /// The input and the output, which can be used concurrently, and the end of the process.
    pub fn parts(&mut self) -> (&Input, &mut Lines, ProcessEnd) {
        let Streams { input, lines } = &mut *self.streams;
        (input, lines, ProcessEnd { state: self.process.state.subscribe(), process: Arc::clone(&self.process) })
    }

    /// Returns a function that postpones the idle timeout of the session.
    pub fn keep_alive(&self) -> impl Fn() + Send + Sync + 'static {
        let state = Arc::clone(&self.state);
        move || state.touch()
    }
}

/// Waits for the end of a process.
pub struct ProcessEnd {
    state: watch::Receiver<ProcessState>,
    process: Arc<ManagedProcess>,
}

impl ProcessEnd {
    /// Waits until the process has ended.
    pub async fn wait(&mut self) -> ProcessInfo {
        // An error means that the session has ended, and the process with it.
        let _ = self.state.wait_for(|state| !state.is_running()).await;
        self.process.info()
    }
}
