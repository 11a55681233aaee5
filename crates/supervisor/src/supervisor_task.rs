//! The task that starts, monitors and replaces workers, as `restart_policy` decides.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::http_request::check_health;
use super::listen;
use super::options::{Listen, Options, TokenSource};
use super::probe::{Depth, Probe, ProbeError};
use super::status::{Ending, GaveUp, Health, Reason, SharedStatus};
use super::worker::{Worker, WorkerExit};
use crate::connection_table::ConnectionTable;
use crate::restart_policy::{Action, Event, ProbeOutcome, RestartPolicy};
use ringfence_backend::SupervisorId;
use ringfence_backend::end_orphans;
use ringfence_config::Scope;
use ringfence_mcp::handover::Channel;

/// Maximum time that a stopping worker may wait for running calls. A second SIGTERM then ends them.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(4);

/// Maximum time that the worker may then take to end its sandboxes. All timeouts of a stop together are below ten seconds.
const EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum time to wait for a worker that is killed during a stop.
const FINAL_KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum time to tell launchers that no further worker follows.
const SANDBOX_CLEANUP_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum time to wait for a killed worker. The next one can use its resources only when it is gone, which is at once
/// unless it is stuck in the kernel.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval at which the task shows that its thread is not blocked.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// Delay between two preflight probes.
const PREFLIGHT_RETRY_DELAY: Duration = Duration::from_millis(100);

pub(crate) struct SupervisorTask {
    identity: SupervisorId,
    options: Options,
    scope: Option<Scope>,
    probe: Probe,
    status: Arc<SharedStatus>,
    stop: CancellationToken,
    /// Cancelled if a stop must not wait for running calls.
    stop_now: CancellationToken,
    policy: RestartPolicy,
}

/// A worker that has exited or must be killed.
struct Loss {
    reason: Reason,
    detail: String,
}

impl SupervisorTask {
    pub(crate) fn new(
        mut options: Options,
        scope: Option<Scope>,
        stop: CancellationToken,
        stop_now: CancellationToken,
    ) -> std::io::Result<(Self, TcpListener, Arc<SharedStatus>)> {
        let listen = std::mem::replace(&mut options.listen, Listen::Address(([127, 0, 0, 1], 0).into()));
        let listener = listen::open(listen)?;
        let address = listen::reachable(listener.local_addr()?);
        let status = SharedStatus::new(format!("http://{address}/mcp"));
        let probe = Probe { address, token: None };
        let policy = RestartPolicy::new(options.max_restarts);
        let (identity, caller_status) = (SupervisorId::unique(), Arc::clone(&status));
        Ok((Self { identity, options, scope, probe, status, stop, stop_now, policy }, listener, caller_status))
    }

    pub(crate) async fn run(mut self, mut connections: ConnectionTable) -> Ending {
        let stop = self.stop.clone();
        let heartbeat = Arc::clone(&self.status);
        // On the thread of the supervisor, so that heartbeats stop if the thread is blocked.
        tokio::spawn(async move {
            loop {
                heartbeat.record_heartbeat();
                sleep(HEARTBEAT_INTERVAL).await;
            }
        });
        loop {
            if let Some(token) = self.options.token.as_ref().and_then(TokenSource::read) {
                self.probe.token = Some(token);
            }
            let started = connections.open_channel().and_then(|(channel, worker_end)| {
                Worker::start(&self.options, worker_end, self.identity).map(|worker| (worker, channel))
            });
            let (worker, channel) = match started {
                Ok(started) => started,
                Err(error) => {
                    let program = self.options.program.display();
                    let loss = Loss { reason: Reason::Exited, detail: format!("cannot start {program}: {error}") };
                    match self.on_loss(loss, None, Vec::new()).await {
                        Some(ending) => return ending,
                        None => continue,
                    }
                }
            };
            self.status.update(|state| state.worker_pid = Some(worker.pid()));
            let loss = tokio::select! {
                biased;
                () = stop.cancelled() => return self.shut_down(worker, &channel, connections).await,
                loss = self.monitor(&worker) => loss,
                never = connections.serve(&channel) => match never {},
            };
            let (exit, stderr) = worker.kill(KILL_TIMEOUT).await;
            connections.on_worker_death(&channel);
            if let Some(ending) = self.on_loss(loss, exit, stderr).await {
                return ending;
            }
        }
    }

    /// Performs the preflight and then the probes of a worker, until it is lost.
    async fn monitor(&mut self, worker: &Worker) -> Loss {
        let exited = || Loss { reason: Reason::Exited, detail: "the worker exited".into() };
        let tools = tokio::select! {
            biased;
            () = worker.exited() => return exited(),
            tools = self.preflight() => tools,
        };
        let tools = match tools {
            Ok(tools) => tools,
            Err(detail) => return Loss { reason: Reason::ProbeFailed, detail },
        };
        self.policy.on_event(Event::Ready, Instant::now());
        tracing::info!("worker {} is ready at {}", worker.pid(), self.status.endpoint());
        self.status.update(|state| {
            state.health = Health::Healthy;
            // A worker that is too busy to list its tools is assumed to have those of the previous one.
            if let Some(tools) = tools {
                state.tools = Some(tools);
            }
        });
        loop {
            let probed = tokio::select! {
                biased;
                () = worker.exited() => return exited(),
                probed = async { sleep(self.options.probe_interval).await; self.probe_once().await } => probed,
            };
            let outcome = match &probed {
                Ok(()) => ProbeOutcome::Passed,
                Err(ProbeError::Busy) => ProbeOutcome::Busy,
                Err(ProbeError::Failed(reason)) => {
                    tracing::warn!("probe of worker {} failed: {reason}", worker.pid());
                    ProbeOutcome::Failed
                }
            };
            let action = self.policy.on_event(Event::Probed(outcome), Instant::now());
            let is_failing = self.policy.failed_probes() > 0;
            self.status.update(|state| state.health = if is_failing { Health::Failing } else { Health::Healthy });
            if let (Action::Kill, Err(ProbeError::Failed(detail))) = (action, probed) {
                return Loss { reason: Reason::ProbeFailed, detail };
            }
        }
    }

    /// Waits until the worker responds and has all expected tools, some of which come from servers that start after it.
    ///
    /// Returns None for a later worker that is too busy to list its tools. Clients that know the endpoint may overload it
    /// from the start; it serves them, so a restart would not help.
    async fn preflight(&self) -> Result<Option<Vec<String>>, String> {
        let deadline = Instant::now() + self.options.preflight_timeout;
        let mut failure = "the worker did not respond".to_owned();
        let mut is_busy = false;
        loop {
            let probed = timeout_at(deadline, self.probe.run(Depth::AllPages)).await;
            is_busy = matches!(probed, Ok(Err(ProbeError::Busy))) || (is_busy && probed.is_err());
            match probed {
                Err(_) => break,
                Ok(Err(ProbeError::Busy)) => "the worker is too busy to respond".clone_into(&mut failure),
                Ok(Err(ProbeError::Failed(reason))) => failure = reason,
                Ok(Ok(tools)) => {
                    let missing = self.options.expected_tools.iter().filter(|name| !tools.contains(*name));
                    let missing: Vec<String> = missing.map(|name| format!("`{name}`")).collect();
                    // A later worker is not checked: if the host cannot start sandboxes, a replacement would not help.
                    let health = if self.policy.has_been_ready() {
                        Ok(())
                    } else {
                        // A worker that does not report its health in time has not passed.
                        match timeout_at(deadline, check_health(self.probe.address)).await {
                            Ok(health) => health,
                            Err(_) => break,
                        }
                    };
                    match (&missing[..], health) {
                        ([], Ok(())) => return Ok(Some(tools.into_iter().collect())),
                        (_, Err(reason)) => failure = reason,
                        (missing, Ok(())) => failure = format!("expected tools are missing: {}", missing.join(", ")),
                    }
                }
            }
            if timeout_at(deadline, sleep(PREFLIGHT_RETRY_DELAY)).await.is_err() {
                break;
            }
        }
        if is_busy && self.policy.has_been_ready() {
            return Ok(None);
        }
        let limit_ms = self.options.preflight_timeout.as_millis();
        Err(format!("the preflight did not pass within {limit_ms} ms: {failure}"))
    }

    async fn probe_once(&self) -> Result<(), ProbeError> {
        let limit = self.options.probe_timeout;
        match timeout(limit, self.probe.run(Depth::FirstPage)).await {
            Ok(probed) => probed.map(drop),
            Err(_) => Err(ProbeError::Failed(format!("no response within {} ms", limit.as_millis()))),
        }
    }

    /// Handles the loss of a worker: waits until the next one may start, or returns the end of the supervision.
    async fn on_loss(&mut self, loss: Loss, exit: Option<WorkerExit>, stderr: Vec<String>) -> Option<Ending> {
        let Loss { reason, mut detail } = loss;
        let (exit_code, signal) = match (reason, exit) {
            (Reason::Exited, Some(WorkerExit { exit_code, signal })) => (exit_code, signal),
            // The signal of a worker that the supervisor killed is no information.
            _ => (None, None),
        };
        match (exit_code, signal) {
            (Some(code), _) => detail = format!("{detail} with code {code}"),
            (None, Some(signal)) => detail = format!("{detail} by signal {signal}"),
            (None, None) => {}
        }
        let action = self.policy.on_event(Event::Lost, Instant::now());
        let restarts = self.policy.restarts();
        self.status.update(|state| {
            state.worker_pid = None;
            state.restarts = restarts;
            state.last = Some((reason, detail.clone()));
            state.health = Health::Restarting;
        });
        let Action::Restart { delay } = action else {
            self.end_sandboxes().await;
            let endpoint = self.status.endpoint().to_owned();
            let gave_up = GaveUp { detail, reason, restarts, exit_code, signal, stderr, endpoint };
            return Some(Ending::GaveUp(Box::new(gave_up)));
        };
        tracing::warn!("{detail}; restart {restarts} follows in {} ms", delay.as_millis());
        tokio::select! {
            biased;
            () = self.stop.clone().cancelled_owned() => {
                self.end_sandboxes().await;
                Some(Ending::Stopped)
            }
            () = sleep(delay) => None,
        }
    }

    /// Stops the worker, and kills it and its sandboxes if that takes too long.
    async fn shut_down(&mut self, worker: Worker, channel: &Channel, mut connections: ConnectionTable) -> Ending {
        connections.close();
        worker.terminate();
        let stop_now = self.stop_now.clone();
        let ending = async {
            let has_exited = tokio::select! {
                biased;
                () = worker.exited() => true,
                () = stop_now.cancelled() => false,
                () = sleep(DRAIN_TIMEOUT) => false,
            };
            if !has_exited {
                worker.terminate();
            }
            timeout(EXIT_TIMEOUT, worker.exited()).await.is_ok()
        };
        let has_exited_in_time = tokio::select! {
            has_exited_in_time = ending => has_exited_in_time,
            never = connections.serve(channel) => match never {},
        };
        let (exit, _) = worker.kill(FINAL_KILL_TIMEOUT).await;
        connections.on_worker_death(channel);
        if !has_exited_in_time || exit.is_none_or(|exit| exit.exit_code != Some(0)) {
            tracing::warn!("the worker did not exit cleanly; the supervisor ends its sandboxes");
            self.end_sandboxes().await;
        }
        Ending::Stopped
    }

    /// Ends the sandboxes of a worker that could not end them itself.
    async fn end_sandboxes(&mut self) {
        if let Some(state) = self.options.state_directory.clone() {
            let (scope, identity) = (self.scope.take(), self.identity);
            let ending = tokio::task::spawn_blocking(move || {
                end_orphans(&state.join("launchers"), scope.as_ref().map(|scope| scope.tag.clone()), identity);
            });
            let _ = timeout(SANDBOX_CLEANUP_TIMEOUT, ending).await;
        }
    }
}
