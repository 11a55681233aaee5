//! Keeps an MCP endpoint available if the worker, the process that serves it, crashes.
//!
//! The supervisor owns the listening socket and accepts all connections, so the endpoint never changes and connections
//! wait while there is no worker. It passes each connection to the current worker and retains a descriptor of it
//! (`connection_table`). If the worker dies, connections without a pending request continue with the next worker; a
//! client with a pending request receives an error that says that its call may have run.
//!
//! `restart_policy` decides when to start, end or replace a worker. `supervisor_task` carries that out and probes the
//! worker (`probe`). The supervisor does not manage sandboxes: they continue after the death of a worker until their
//! lease expires, and the next worker adopts them.

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

/// A supervised endpoint. All methods may be called from any thread. Dropping it stops the endpoint.
pub struct Supervisor {
    status: Arc<SharedStatus>,
    stop: CancellationToken,
    stop_now: CancellationToken,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Supervisor {
    /// Starts the endpoint and waits until the first worker has passed its preflight, the check before it is ready.
    pub fn start(options: Options) -> Result<Self, StartError> {
        let supervisor = Self::launch(options)?;
        supervisor.ready()?;
        Ok(supervisor)
    }

    /// Starts the endpoint without waiting for the worker. Connections wait for it.
    pub fn launch(mut options: Options) -> Result<Self, StartError> {
        let (stop, stop_now) = (CancellationToken::new(), CancellationToken::new());
        let scope = options.scope_file.as_deref().map(Scope::load).transpose()?.map(|(scope, _)| scope);
        // Pins the scope for all workers: a worker refuses to start if the scope file has another digest.
        options.variables.extend(scope.iter().map(|scope| (SCOPE_DIGEST_VARIABLE.into(), scope.digest.clone().into())));
        let (task, listener, status) =
            SupervisorTask::new(options, scope, stop.clone(), stop_now.clone()).map_err(StartError::Listen)?;
        let thread_status = Arc::clone(&status);
        let (error_sender, error_receiver) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("ringfence-supervisor".into()).spawn(move || {
            // A panic of this thread must wake up the threads that wait for its end, too.
            let _end_on_drop = thread_status.end_on_drop();
            // The runtime is created on this thread: if the caller runs within another runtime, dropping it there would
            // panic.
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
            // `shutdown_background` does not wait for blocking tasks, such as a connection to an unresponsive launcher.
            runtime.shutdown_background();
            thread_status.end(ending);
        });
        let thread = thread.map_err(StartError::Thread)?;
        // If there is no error, the thread drops its sender, and `recv` returns.
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

    /// The number of workers that have replaced an earlier worker.
    pub fn restart_count(&self) -> u32 {
        self.status().restarts
    }

    pub fn health(&self) -> Health {
        self.status().health
    }

    pub fn status(&self) -> Status {
        self.status.snapshot()
    }

    /// Requests a stop and returns immediately. Running calls may still finish.
    pub fn request_stop(&self) {
        self.stop.cancel();
    }

    /// Requests a stop that does not wait for running calls, and returns immediately.
    pub fn request_immediate_stop(&self) {
        self.stop_now.cancel();
        self.stop.cancel();
    }

    /// Returns whether the supervisor thread has recorded a heartbeat within the last ten seconds. If not, it hangs.
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
