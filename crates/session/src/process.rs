//! Long-lived processes of a session, as callers see them.

use std::sync::Arc;
use std::time::Duration;

use ringfence_backend::{ProcessInfo, ProcessRequest};
use rustix::process::Signal;
use tokio::time::timeout;

use super::Sessions;
use super::events;
use crate::session_record::Handle;
use crate::session_state::{SessionState, Visit};
use ringfence_backend::Streams;
use ringfence_backend::{Managed, State};
use ringfence_core::AuditKind;
use ringfence_core::{Failure, Kind, Principal, SessionId};

/// How long a process may take to start, and to end after each signal.
const PATIENCE: Duration = Duration::from_secs(5);

impl Sessions {
    /// Starts a process that lives until it ends, is ended, or its session ends.
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
        handle.shared.touch();
        let process = handle.processes.start(&request, self.tasks())?;
        let mut state = process.state.subscribe();
        let started = timeout(PATIENCE, state.wait_for(|state| *state != State::Starting)).await;
        match started.map(|state| state.map(|state| state.clone())) {
            Ok(Ok(State::Refused(why))) => {
                handle.processes.forget(process.pid);
                Err(Failure::new(Kind::Validation, format!("the process could not be started: {why}"))
                    .hint("give a program of the sandbox, by its full path or by a name on its PATH")
                    .hint("and a workdir that is there, if any"))
            }
            Ok(Ok(_)) => Ok(process.info()),
            Ok(Err(_)) => Err(Failure::session_not_found(id)),
            Err(_) => {
                handle.processes.signal(&process, Signal::KILL);
                Err(Failure::new(Kind::Connection, "the sandbox did not start the process in time").hint("try again"))
            }
        }
    }

    pub fn list_processes(&self, principal: &Principal, id: &SessionId) -> Result<Vec<ProcessInfo>, Failure> {
        let handle = self.find(principal, id).map_err(|failure| self.refused(principal, Some(id), failure))?;
        Ok(handle.processes.all().iter().map(|process| process.info()).collect())
    }

    pub fn process(&self, principal: &Principal, id: &SessionId, pid: u32) -> Result<ProcessInfo, Failure> {
        let found = self.find_process(principal, id, pid);
        Ok(found.map_err(|failure| self.refused(principal, Some(id), failure))?.1.info())
    }

    /// Ends a process, politely first, and forgets it.
    pub async fn stop_process(&self, principal: &Principal, id: &SessionId, pid: u32) -> Result<ProcessInfo, Failure> {
        let stopped = self.try_stop(principal, id, pid).await;
        let info = stopped.map_err(|failure| self.refused(principal, Some(id), failure))?;
        self.0.audit.record(events::process(AuditKind::ProcessStopped, principal, id, pid));
        Ok(info)
    }

    async fn try_stop(&self, principal: &Principal, id: &SessionId, pid: u32) -> Result<ProcessInfo, Failure> {
        let (Handle { processes, .. }, process) = self.find_process(principal, id, pid)?;
        let mut state = process.state.subscribe();
        for signal in [Signal::TERM, Signal::KILL] {
            if state.borrow().is_running() {
                processes.signal(&process, signal);
                let _ = timeout(PATIENCE, state.wait_for(|state| !state.is_running())).await;
            }
        }
        if state.borrow().is_running() {
            return Err(Failure::new(Kind::Connection, format!("process {pid} did not end in time")).hint("try again"));
        }
        processes.forget(pid);
        Ok(process.info())
    }

    /// The process's standard input and output, for one caller at a time.
    pub fn attach(&self, principal: &Principal, id: &SessionId, pid: u32) -> Result<Attachment, Failure> {
        self.try_attach(principal, id, pid).map_err(|failure| self.refused(principal, Some(id), failure))
    }

    fn try_attach(&self, principal: &Principal, id: &SessionId, pid: u32) -> Result<Attachment, Failure> {
        let (handle, process) = self.find_process(principal, id, pid)?;
        let visit = handle.shared.enter().ok_or_else(|| Failure::session_not_found(id))?;
        let streams = Arc::clone(&process.streams).try_lock_owned().map_err(|_| {
            Failure::new(Kind::ResourceLimit, format!("somebody else is attached to process {pid}"))
                .hint("close the other connection first")
        })?;
        self.0.audit.record(events::process(AuditKind::ProcessAttached, principal, id, pid));
        Ok(Attachment { streams, process, shared: handle.shared, _visit: visit })
    }

    fn find_process(&self, principal: &Principal, id: &SessionId, pid: u32) -> Result<(Handle, Arc<Managed>), Failure> {
        let handle = self.find(principal, id)?;
        // Whoever looks after a process uses its session.
        handle.shared.touch();
        let process = handle.processes.find(pid).ok_or_else(|| {
            Failure::new(Kind::NotFound, format!("there is no process {pid} in this session"))
                .hint("list the session's processes")
                .hint("one that was started by a server that has died has ended with it: start it again")
        })?;
        Ok((handle, process))
    }
}

/// One caller's hold on a process's streams. Dropped, the next may have them; the process runs on.
pub struct Attachment {
    streams: tokio::sync::OwnedMutexGuard<Streams>,
    process: Arc<Managed>,
    shared: Arc<SessionState>,
    /// A session to whose process somebody speaks is in use, however long they are silent.
    _visit: Visit,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.shared.touch();
    }
}

impl Attachment {
    /// Input and output, to be used at the same time, and what tells of the end.
    pub fn parts(&mut self) -> (&ringfence_backend::Input, &mut ringfence_backend::Lines, Ending) {
        let Streams { input, lines } = &mut *self.streams;
        (input, lines, Ending { state: self.process.state.subscribe(), process: Arc::clone(&self.process) })
    }

    /// Keeps the session from expiring.
    pub fn keep_alive(&self) -> impl Fn() + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || shared.touch()
    }
}

/// Tells of the end of a process.
pub struct Ending {
    state: tokio::sync::watch::Receiver<State>,
    process: Arc<Managed>,
}

impl Ending {
    /// Waits until the process has ended.
    pub async fn wait(&mut self) -> ProcessInfo {
        // An error is the end of the session, which is the end of the process too.
        let _ = self.state.wait_for(|state| !state.is_running()).await;
        self.process.info()
    }
}
