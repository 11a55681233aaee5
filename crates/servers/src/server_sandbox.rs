//! A sandbox for hosted servers: starts processes in it, tracks how they exit, and serves its egress.
//!
//! Dropping a [`ServerSandbox`] kills everything in it. Its backend has no persistence: when this process dies, for
//! whatever reason, all these sandboxes end at once. Another ringfence process
//! never takes one over.

mod network;
mod process;
pub(crate) mod shared;
mod spec;
mod stderr_tail;

use ringfence_core::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};

use ringfence_backend::{Backend, CreateError, Event, ExitStatus, Instance, InstanceRequest, SignalTarget};
use ringfence_core::{Command, EgressSockets, Spec};
use rustix::process::Signal;
use tokio_util::task::AbortOnDropHandle;

use crate::phase::{Phase, StartFailure};
use ringfence_egress::Rule;

use network::SandboxNetwork;
pub(crate) use network::{RefusalReport, ServerEgress};
pub use process::ProcessExit;
pub(crate) use process::{Process, ProcessHandle, read_head};
use process::{ProcessState, ProcessTable};
pub(crate) use spec::{add_interpreters, egress_rules, sandbox_spec};
pub(crate) use stderr_tail::StderrTail;

/// A running sandbox with the processes that were started in it.
pub(crate) struct ServerSandbox {
    inner: Arc<Inner>,
    _event_task: AbortOnDropHandle<()>,
    network: Option<SandboxNetwork>,
}

struct Inner {
    guest: Instance,
    processes: Mutex<ProcessTable>,
}

impl ServerSandbox {
    /// Launches a sandbox.
    pub(crate) async fn launch(backend: &Backend, spec: Spec, egress: ServerEgress) -> Result<Self, StartFailure> {
        let backend = backend.clone();
        // In a separate task: if the caller gives up, the launch still completes, and the sandbox is then dropped and
        // killed instead of being left behind.
        let launching = tokio::spawn(async move { launch(&backend, spec).await });
        let (guest, sockets) =
            launching.await.map_err(|error| StartFailure::transient(Phase::SessionCreate, error.to_string()))??;
        let started = sockets.map(|sockets| SandboxNetwork::start(sockets, egress)).transpose();
        let network = started.map_err(|error| {
            StartFailure::transient(Phase::SessionCreate, format!("its network cannot be served: {error}"))
        })?;
        let inner = Arc::new(Inner { guest, processes: Mutex::default() });
        let event_task = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&inner).handle_events()));
        Ok(Self { inner, _event_task: event_task, network })
    }

    /// Requests the start of a process. [`ProcessHandle::wait_until_started`] returns the result.
    pub(crate) fn start(
        &self,
        command: &Command,
        environment: &BTreeMap<String, String>,
    ) -> Result<Process, StartFailure> {
        let failed = |error: String| {
            StartFailure::transient(Phase::ProcessStart, format!("the process cannot be started: {error}"))
        };
        let (number, state) = self.inner.processes().add();
        let started = self.inner.guest.spawn_piped(number, command, environment).map_err(|error| {
            self.inner.processes().remove(number);
            failed(error)
        })?;
        Ok(Process { number, state, stdin: started.stdin, stdout: started.stdout, stderr: started.stderr })
    }

    /// Kills the whole sandbox when this process exits.
    pub(crate) fn set_main_process(&self, process: &ProcessHandle) {
        self.inner.processes().main = Some(process.number);
        if process.has_exited() {
            self.kill();
        }
    }

    /// Returns a guard that kills a process and its descendants when it is dropped, if the process still runs then.
    pub(crate) fn kill_on_drop<'a>(&'a self, process: &ProcessHandle) -> KillOnDrop<'a> {
        KillOnDrop { sandbox: self, process: process.clone() }
    }

    pub(crate) fn signal(&self, process: &ProcessHandle, signal: Signal) {
        let target = if signal == Signal::KILL { SignalTarget::ProcessTree } else { SignalTarget::ProcessGroup };
        // If the sandbox has ended, `handle_events` reports that.
        self.inner.guest.signal(process.number, signal, target);
    }

    pub(crate) fn kill(&self) {
        self.inner.guest.kill();
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.inner.processes().is_lost
    }

    /// Returns the process ID of the sandbox's init on the host, so that a person can find the sandbox.
    pub(crate) fn id(&self) -> String {
        self.inner.guest.id()
    }

    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        self.inner.guest.memory_bytes()
    }

    /// Adds rules to its network until it ends, and returns all rules. `None` if it has no network.
    pub(crate) async fn allow(&self, rules: Vec<Rule>) -> Option<Vec<Rule>> {
        let ports = self.inner.guest.egress_ports();
        Some(self.network.as_ref()?.allow(rules, &ports).await)
    }

    /// Returns a line for each host that was refused.
    pub(crate) fn refused_hosts(&self) -> Vec<String> {
        self.network.as_ref().map(SandboxNetwork::refused_hosts).unwrap_or_default()
    }

    /// Kills everything in the sandbox, and waits until its processes have exited and its resources are freed.
    pub(crate) async fn end(self) {
        self.inner.guest.stop().await;
    }
}

/// Kills a process that still runs when this is dropped, because its caller has stopped waiting.
pub(crate) struct KillOnDrop<'a> {
    sandbox: &'a ServerSandbox,
    process: ProcessHandle,
}

impl Drop for KillOnDrop<'_> {
    fn drop(&mut self) {
        self.sandbox.signal(&self.process, Signal::KILL);
    }
}

impl Drop for ServerSandbox {
    fn drop(&mut self) {
        // The event task owns the instance too and may be dropped a little later.
        self.kill();
    }
}

impl Inner {
    async fn handle_events(self: Arc<Self>) {
        loop {
            match self.guest.event().await {
                Event::Started { process } => self.processes().set_state(process, ProcessState::Running),
                Event::StartFailed { process, errno } => {
                    self.processes().set_state(process, ProcessState::StartFailed(errno.to_string()));
                    self.kill_if_main(process);
                }
                Event::Ended { process, status: end } => {
                    let exit = match end {
                        ExitStatus::Exited(code) => ProcessExit::Exited(code),
                        ExitStatus::Killed(signal) => {
                            let is_out_of_memory = signal == Signal::KILL.as_raw() && self.guest.memory_kills() > 0;
                            ProcessExit::Killed { signal, is_out_of_memory }
                        }
                    };
                    self.processes().set_state(process, ProcessState::Exited(exit));
                    self.kill_if_main(process);
                }
                Event::Lost => break,
            }
        }
        // The memory cgroup may have killed the init itself.
        let is_out_of_memory = self.guest.memory_kills() > 0 || self.guest.has_exceeded_memory().await;
        self.processes().set_lost(ProcessExit::SandboxLost { is_out_of_memory });
    }

    fn kill_if_main(&self, process: u32) {
        if self.processes().main == Some(process) {
            self.guest.kill();
        }
    }

    fn processes(&self) -> MutexGuard<'_, ProcessTable> {
        self.processes.lock()
    }
}

async fn launch(backend: &Backend, spec: Spec) -> Result<(Instance, Option<EgressSockets>), StartFailure> {
    let created = backend.create(InstanceRequest::new(spec)).await.map_err(|error: CreateError| {
        let failure = if error.is_transient() {
            StartFailure::transient(Phase::SessionCreate, error.to_string())
        } else {
            StartFailure::permanent(Phase::BoxUnavailable, error.to_string())
        };
        error.hints().into_iter().fold(failure, StartFailure::hint)
    })?;
    Ok((created.instance, created.egress))
}
