//! Keeps an MCP endpoint available although the process that serves it, the worker, can crash.
//!
//! The supervisor owns the listening socket and accepts all connections, so the endpoint never changes and connections
//! wait while there is no worker. It passes each connection to the current worker and retains a descriptor of it
//! (`connection_table`). If the worker dies, connections without a pending request continue with the next worker; on the
//! others the client receives an error that says that its call may have run.
//!
//! `restart_policy` decides, `supervisor_task` acts: it starts a `worker`, probes it (`probe`), ends and replaces it. The
//! supervisor does not manage sandboxes: they outlive a worker by their lease, and the next worker adopts them.

mod connection_table;
mod http_request;
mod listen;
mod options;
mod probe;
mod restart_policy;
mod status;
mod stderr_tail;
mod supervisor_task;
mod worker;

use std::sync::Arc;
use std::thread::JoinHandle;

use ringfence_core::sync::Mutex;
use tokio_util::sync::CancellationToken;

pub use options::{Listen, Options, TokenSource, WorkerLog};
pub use status::{Ending, GaveUp, Health, Reason, Status};
pub use worker::{SUPERVISOR_VARIABLE, become_session_leader};

use connection_table::ConnectionTable;
use ringfence_config::{SCOPE_DIGEST_VARIABLE, Scope, ScopeError};
use status::SharedStatus;
use supervisor_task::SupervisorTask;

/// The reason why the endpoint was not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Scope(#[from] ScopeError),
    #[error("cannot listen on the address of the endpoint")]
    Listen(#[source] std::io::Error),
    #[error("cannot start the supervisor thread")]
    Thread(#[source] std::io::Error),
    #[error("cannot start the worker: {}", .0.detail)]
    GaveUp(Box<GaveUp>),
    #[error("the supervisor was stopped before the worker was ready")]
    Stopped,
}

/// A supervised endpoint. All methods may be called from any thread. It is stopped when it is dropped.
pub struct Supervisor {
    status: Arc<SharedStatus>,
    stop: CancellationToken,
    stop_now: CancellationToken,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Supervisor {
    /// Starts the endpoint and waits until the first worker has passed its preflight.
    pub fn start(options: Options) -> Result<Self, StartError> {
        let supervisor = Self::launch(options)?;
        supervisor.ready()?;
        Ok(supervisor)
    }

    /// Starts the endpoint without waiting for the worker. Connections wait for it.
    pub fn launch(mut options: Options) -> Result<Self, StartError> {
        let (stop, stop_now) = (CancellationToken::new(), CancellationToken::new());
        let scope = options.scope_file.as_deref().map(Scope::load).transpose()?.map(|(scope, _)| scope);
        // Pins the scope for all workers: one that finds another content in the file refuses to start.
        options.variables.extend(scope.iter().map(|scope| (SCOPE_DIGEST_VARIABLE.into(), scope.digest.clone().into())));
        let (task, listener, status) =
            SupervisorTask::new(options, scope, stop.clone(), stop_now.clone()).map_err(StartError::Listen)?;
        let thread_status = Arc::clone(&status);
        let (error_sender, error_receiver) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("ringfence-supervisor".into()).spawn(move || {
            // Also if this thread panics: threads that wait for the end must wake up.
            let _end_on_drop = thread_status.end_on_drop();
            // Created on this thread, since the caller may be within another runtime, where dropping it would panic.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let created = runtime.and_then(|runtime| {
                let context = runtime.enter();
                let connections = ConnectionTable::new(listener)?;
                drop(context);
                Ok((runtime, connections))
            });
            let (runtime, connections) = match created {
                Ok(created) => created,
                Err(error) => return drop(error_sender.send(error)),
            };
            drop(error_sender);
            let ending = runtime.block_on(task.run(connections));
            // Does not wait for a launcher that does not respond.
            runtime.shutdown_background();
            thread_status.end(ending);
        });
        let thread = thread.map_err(StartError::Thread)?;
        // Without an error the thread drops its sender.
        error_receiver.recv().map_or(Ok(()), |error| Err(StartError::Thread(error)))?;
        Ok(Self { status, stop, stop_now, thread: Mutex::new(Some(thread)) })
    }

    /// Waits until the first worker has passed its preflight. Returns the names of its tools.
    pub fn ready(&self) -> Result<Vec<String>, StartError> {
        self.status.wait_ready().map_err(|ending| match ending {
            Ending::Stopped => StartError::Stopped,
            Ending::GaveUp(gave_up) => StartError::GaveUp(gave_up),
        })
    }

    /// The URL of the endpoint. It never changes.
    pub fn endpoint(&self) -> &str {
        self.status.endpoint()
    }

    /// The number of workers that replaced another.
    pub fn restart_count(&self) -> u32 {
        self.status().restarts
    }

    pub fn health(&self) -> Health {
        self.status().health
    }

    pub fn status(&self) -> Status {
        self.status.snapshot()
    }

    /// Requests a stop and returns at once. Running calls may finish.
    pub fn request_stop(&self) {
        self.stop.cancel();
    }

    /// Requests a stop that does not wait for running calls, and returns at once.
    pub fn request_immediate_stop(&self) {
        self.stop_now.cancel();
        self.stop.cancel();
    }

    /// Whether the supervisor thread has run within the last ten seconds. Otherwise it hangs.
    pub fn is_responsive(&self) -> bool {
        self.status.is_responsive()
    }

    /// Waits until the supervisor has stopped or given up.
    pub fn wait(&self) -> Ending {
        self.status.wait_ended()
    }

    /// Lets running calls finish, then ends the worker and its sandboxes. Takes at most ten seconds.
    pub fn stop(&self) -> Ending {
        self.request_stop();
        let ending = self.wait();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        ending
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests;
