//! Keeps an MCP endpoint alive: owns its listening socket, and under it a serving process that can die.
//!
//! Connections are accepted here and handed to one worker after the other (`connections`), so that the endpoint never changes
//! and no connection is refused while there is none: it waits. One on which nothing was asked does not notice that its
//! worker has died; on any other the client is told that its call may have run, or may not.
//!
//! `life` decides, `keep` does: it starts a `worker`, probes it (`probe`), ends and replaces it. Sandboxes are not here:
//! they outlive a worker by their lease, and the next one takes them over.

mod connection_table;
mod listen;
mod options;
mod probe;
mod request;
mod state_machine;
mod status;
mod stderr_tail;
mod supervise;
mod worker;

use ringfence_core::sync::Mutex;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio_util::sync::CancellationToken;

pub use options::{Listen, Options, TokenSource, WorkerLog};
pub use status::{Ending, GaveUp, Health, Reason, Status};
pub use worker::{SUPERVISOR_VARIABLE, lead_session};

use connection_table::ConnectionTable;
use ringfence_config::{SCOPE_DIGEST_VARIABLE, Scope, ScopeError};
use status::Board;
use supervise::Keeper;

/// Why there is no endpoint.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Scope(#[from] ScopeError),
    #[error("the endpoint cannot listen")]
    Listen(#[source] std::io::Error),
    #[error("the supervisor cannot run")]
    Thread(#[source] std::io::Error),
    #[error("the worker cannot be started: {}", .0.detail)]
    GaveUp(Box<GaveUp>),
    #[error("it was stopped before it was ready")]
    Stopped,
}

/// A supervised endpoint. All methods may be called from any thread; dropped, it is stopped.
pub struct Supervisor {
    board: Arc<Board>,
    stop: CancellationToken,
    hurry: CancellationToken,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Supervisor {
    /// Starts the endpoint, and gives it once the worker has passed its preflight.
    pub fn start(options: Options) -> Result<Self, StartError> {
        let supervisor = Self::launch(options)?;
        supervisor.ready()?;
        Ok(supervisor)
    }

    /// Starts the endpoint without waiting for the worker: connections wait for it.
    pub fn launch(mut options: Options) -> Result<Self, StartError> {
        let (stop, hurry) = (CancellationToken::new(), CancellationToken::new());
        let scope = options.scope_file.as_deref().map(Scope::load).transpose()?.map(|(scope, _)| scope);
        // Every worker serves within this one, whatever becomes of the file.
        options.variables.extend(scope.iter().map(|scope| (SCOPE_DIGEST_VARIABLE.into(), scope.digest.clone().into())));
        let (keeper, listener, board) =
            Keeper::new(options, scope, stop.clone(), hurry.clone()).map_err(StartError::Listen)?;
        let shown = Arc::clone(&board);
        let (failed, failure) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("ringfence-supervisor".into()).spawn(move || {
            // However it ends: whoever waits must not wait for ever.
            let _ended = shown.ends_with_this();
            // Made where it is dropped: whoever launches may be in another, which would not have that.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let made = runtime.and_then(|runtime| {
                let within = runtime.enter();
                let connections = ConnectionTable::new(listener)?;
                drop(within);
                Ok((runtime, connections))
            });
            let (runtime, connections) = match made {
                Ok(made) => made,
                Err(error) => return drop(failed.send(error)),
            };
            drop(failed);
            let ending = runtime.block_on(keeper.run(connections));
            // A launcher that does not answer is not waited for.
            runtime.shutdown_background();
            shown.end(ending);
        });
        let thread = thread.map_err(StartError::Thread)?;
        // Nothing is said if all is well.
        failure.recv().map_or(Ok(()), |error| Err(StartError::Thread(error)))?;
        Ok(Self { board, stop, hurry, thread: Mutex::new(Some(thread)) })
    }

    /// Waits until the first worker has passed its preflight, and gives the names of its tools.
    pub fn ready(&self) -> Result<Vec<String>, StartError> {
        self.board.wait_ready().map_err(|ending| match ending {
            Ending::Stopped => StartError::Stopped,
            Ending::GaveUp(why) => StartError::GaveUp(why),
        })
    }

    /// The URL, the same for as long as this lives.
    pub fn endpoint(&self) -> &str {
        self.board.endpoint()
    }

    /// How many workers have taken the place of another.
    pub fn restart_count(&self) -> u32 {
        self.status().restarts
    }

    pub fn health(&self) -> Health {
        self.status().health
    }

    pub fn status(&self) -> Status {
        self.board.status()
    }

    /// Asks it to stop, and does not wait for that.
    pub fn ask_to_stop(&self) {
        self.stop.cancel();
    }

    /// Asks it to stop, and not to let calls under way finish; does not wait for that.
    pub fn ask_to_stop_at_once(&self) {
        self.hurry.cancel();
        self.stop.cancel();
    }

    /// Whether it still looks after its worker. One that does not for ten seconds hangs.
    pub fn is_awake(&self) -> bool {
        self.board.is_awake()
    }

    /// Waits until it has been stopped, or has given up.
    pub fn wait(&self) -> Ending {
        self.board.wait_ended()
    }

    /// Lets calls under way finish, then ends the worker and its sandboxes: within ten seconds.
    pub fn stop(&self) -> Ending {
        self.ask_to_stop();
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
