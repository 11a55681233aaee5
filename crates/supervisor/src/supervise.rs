//! The task that keeps a worker alive: does what `life` decides.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::listen;
use super::options::{Listen, Options, TokenSource};
use super::probe::{Depth, Probe, Trouble};
use super::request::ill_health;
use super::status::{Board, Ending, GaveUp, Health, Reason};
use super::worker::{Ended, Worker};
use crate::connection_table::ConnectionTable;
use crate::state_machine::{Event, Life, Pulse, Step};
use ringfence_backend::Identity;
use ringfence_backend::end_orphans;
use ringfence_config::Scope;
use ringfence_mcp::handover::Channel;

/// How long a worker may finish what is under way; then it is told once more, and ends at once.
pub(crate) const DRAIN: Duration = Duration::from_secs(4);

/// How long it may then take to end its sandboxes. With what comes after it, a stop takes no more than ten seconds, also
/// if every one of these times is used up.
const FAREWELL: Duration = Duration::from_secs(3);

/// How long one that was killed at the end may take to be gone.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// How long launchers may take to be told that nobody comes any more.
const LAST_RITES: Duration = Duration::from_secs(1);

/// A process that was killed is gone at once, unless the kernel is stuck. What it holds is the next worker's only then.
const DEATH: Duration = Duration::from_secs(5);

/// How often the keeper says that it is awake.
const BETWEEN_SIGNS: Duration = Duration::from_secs(1);

/// Between looks at a worker that answers, but not yet as it should.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

pub(crate) struct Keeper {
    identity: Identity,
    options: Options,
    scope: Option<Scope>,
    probe: Probe,
    board: Arc<Board>,
    stop: CancellationToken,
    /// Calls under way are not waited for.
    hurry: CancellationToken,
    life: Life,
}

/// A worker that is no more, or shall be no more.
struct Loss {
    reason: Reason,
    detail: String,
}

impl Keeper {
    pub(crate) fn new(
        mut options: Options,
        scope: Option<Scope>,
        stop: CancellationToken,
        hurry: CancellationToken,
    ) -> std::io::Result<(Self, TcpListener, Arc<Board>)> {
        let listen = std::mem::replace(&mut options.listen, Listen::Address(([127, 0, 0, 1], 0).into()));
        let listener = listen::open(listen)?;
        let address = listen::reachable(listener.local_addr()?);
        let board = Board::new(format!("http://{address}/mcp"));
        let probe = Probe { address, token: None };
        let life = Life::new(options.max_restarts);
        let (identity, shown) = (Identity::unique(), Arc::clone(&board));
        Ok((Self { identity, options, scope, probe, board, stop, hurry, life }, listener, shown))
    }

    pub(crate) async fn run(mut self, mut connections: ConnectionTable) -> Ending {
        let stop = self.stop.clone();
        let awake = Arc::clone(&self.board);
        // On the same thread: when that hangs, nothing is said.
        tokio::spawn(async move {
            loop {
                awake.say_awake();
                sleep(BETWEEN_SIGNS).await;
            }
        });
        loop {
            if let Some(token) = self.options.token.as_ref().and_then(TokenSource::read) {
                self.probe.token = Some(token);
            }
            let started = connections.open_channel().and_then(|(channel, theirs)| {
                Worker::start(&self.options, theirs, self.identity).map(|worker| (worker, channel))
            });
            let (worker, channel) = match started {
                Ok(started) => started,
                Err(error) => {
                    let program = self.options.program.display();
                    let loss = Loss { reason: Reason::Exited, detail: format!("{program} cannot be started: {error}") };
                    match self.lost(loss, None, Vec::new()).await {
                        Some(ending) => return ending,
                        None => continue,
                    }
                }
            };
            self.board.show(|shown| shown.worker_pid = Some(worker.pid()));
            let loss = tokio::select! {
                biased;
                () = stop.cancelled() => return self.farewell(worker, &channel, connections).await,
                loss = self.attend(&worker) => loss,
                never = connections.serve(&channel) => match never {},
            };
            let (ended, said) = worker.end(DEATH).await;
            connections.on_worker_death(&channel);
            if let Some(ending) = self.lost(loss, ended, said).await {
                return ending;
            }
        }
    }

    /// Sees a worker through its preflight and its probes, until it is lost.
    async fn attend(&mut self, worker: &Worker) -> Loss {
        let exited = || Loss { reason: Reason::Exited, detail: "the worker exited".into() };
        let tools = tokio::select! {
            biased;
            () = worker.ended() => return exited(),
            tools = self.preflight() => tools,
        };
        let tools = match tools {
            Ok(tools) => tools,
            Err(detail) => return Loss { reason: Reason::ProbeFailed, detail },
        };
        self.life.on(Event::Ready, Instant::now());
        tracing::info!("the worker {} is ready at {}", worker.pid(), self.board.endpoint());
        self.board.show(|shown| {
            shown.health = Health::Healthy;
            // Too busy to tell them: they are taken to be those of before.
            if let Some(tools) = tools {
                shown.tools = Some(tools);
            }
        });
        loop {
            let probed = tokio::select! {
                biased;
                () = worker.ended() => return exited(),
                probed = async { sleep(self.options.probe_interval).await; self.look().await } => probed,
            };
            let pulse = match &probed {
                Ok(()) => Pulse::Good,
                Err(Trouble::Busy) => Pulse::Busy,
                Err(Trouble::Failed(why)) => {
                    tracing::warn!("the worker {} does not answer its probe: {why}", worker.pid());
                    Pulse::Failed
                }
            };
            let step = self.life.on(Event::Probed(pulse), Instant::now());
            let is_failing = self.life.failed_probes() > 0;
            self.board.show(|shown| shown.health = if is_failing { Health::Failing } else { Health::Healthy });
            if let (Step::Kill, Err(Trouble::Failed(detail))) = (step, probed) {
                return Loss { reason: Reason::ProbeFailed, detail };
            }
        }
    }

    /// Waits until the worker answers and has all tools that are expected: some come from servers that start after it.
    /// The tools of one that has too much to do to tell them are not known. Clients who know the endpoint may keep it so
    /// from its first moment: it serves them, and to kill it would help nobody.
    async fn preflight(&self) -> Result<Option<Vec<String>>, String> {
        let deadline = Instant::now() + self.options.preflight_timeout;
        let mut trouble = "it did not answer".to_owned();
        let mut is_busy = false;
        loop {
            let probed = timeout_at(deadline, self.probe.run(Depth::AllPages)).await;
            is_busy = matches!(probed, Ok(Err(Trouble::Busy))) || (is_busy && probed.is_err());
            match probed {
                Err(_) => break,
                Ok(Err(Trouble::Busy)) => "it is too busy to answer".clone_into(&mut trouble),
                Ok(Err(Trouble::Failed(why))) => trouble = why,
                Ok(Ok(tools)) => {
                    let missing = self.options.expected_tools.iter().filter(|name| !tools.contains(*name));
                    let missing: Vec<String> = missing.map(|name| format!("`{name}`")).collect();
                    // A later worker keeps serving: a replacement would not help on a host that cannot start sandboxes.
                    let ill = if self.life.has_been_ready() {
                        None
                    } else {
                        timeout_at(deadline, ill_health(self.probe.address)).await.unwrap_or_default()
                    };
                    match (&missing[..], ill) {
                        ([], None) => return Ok(Some(tools.into_iter().collect())),
                        (_, Some(reason)) => trouble = reason,
                        (missing, None) => trouble = format!("expected tools are missing: {}", missing.join(", ")),
                    }
                }
            }
            if timeout_at(deadline, sleep(BETWEEN_LOOKS)).await.is_err() {
                break;
            }
        }
        if is_busy && self.life.has_been_ready() {
            return Ok(None);
        }
        let limit_ms = self.options.preflight_timeout.as_millis();
        Err(format!("the preflight did not pass within {limit_ms} ms: {trouble}"))
    }

    async fn look(&self) -> Result<(), Trouble> {
        let limit = self.options.probe_timeout;
        match timeout(limit, self.probe.run(Depth::FirstPage)).await {
            Ok(probed) => probed.map(drop),
            Err(_) => Err(Trouble::Failed(format!("no answer within {} ms", limit.as_millis()))),
        }
    }

    /// Waits until the next worker may start, or gives how all ended.
    async fn lost(&mut self, loss: Loss, ended: Option<Ended>, said: Vec<String>) -> Option<Ending> {
        let Loss { reason, mut detail } = loss;
        let (exit_code, signal) = match (reason, ended) {
            (Reason::Exited, Some(Ended { exit_code, signal })) => (exit_code, signal),
            // What we have killed says nothing by its signal.
            _ => (None, None),
        };
        match (exit_code, signal) {
            (Some(code), _) => detail = format!("{detail} with code {code}"),
            (None, Some(signal)) => detail = format!("{detail} by signal {signal}"),
            (None, None) => {}
        }
        let step = self.life.on(Event::Lost, Instant::now());
        let restarts = self.life.restarts();
        self.board.show(|shown| {
            shown.worker_pid = None;
            shown.restarts = restarts;
            shown.last = Some((reason, detail.clone()));
            shown.health = Health::Restarting;
        });
        let Step::Restart { after } = step else {
            self.end_sandboxes().await;
            let endpoint = self.board.endpoint().to_owned();
            let why = GaveUp { detail, reason, restarts, exit_code, signal, stderr: said, endpoint };
            return Some(Ending::GaveUp(Box::new(why)));
        };
        tracing::warn!("{detail}; restart {restarts} in {} ms", after.as_millis());
        tokio::select! {
            biased;
            () = self.stop.clone().cancelled_owned() => {
                self.end_sandboxes().await;
                Some(Ending::Stopped)
            }
            () = sleep(after) => None,
        }
    }

    /// Ends the worker in order, or by force if it takes too long; then nothing of it is left.
    async fn farewell(&mut self, worker: Worker, channel: &Channel, mut connections: ConnectionTable) -> Ending {
        connections.close();
        worker.ask_to_end();
        let hurry = self.hurry.clone();
        let ending = async {
            let has_drained = tokio::select! {
                biased;
                () = worker.ended() => true,
                () = hurry.cancelled() => false,
                () = sleep(DRAIN) => false,
            };
            if !has_drained {
                worker.ask_to_end();
            }
            timeout(FAREWELL, worker.ended()).await.is_ok()
        };
        let ended_itself = tokio::select! {
            ended_itself = ending => ended_itself,
            never = connections.serve(channel) => match never {},
        };
        let (ended, _) = worker.end(LAST_MOMENT).await;
        connections.on_worker_death(channel);
        if !ended_itself || ended.is_none_or(|ended| ended.exit_code != Some(0)) {
            tracing::warn!("the worker did not end in order");
            self.end_sandboxes().await;
        }
        Ending::Stopped
    }

    /// Those of a worker that could not do so itself.
    async fn end_sandboxes(&mut self) {
        if let Some(state) = self.options.state_directory.clone() {
            let (scope, own) = (self.scope.take(), self.identity);
            let ending = tokio::task::spawn_blocking(move || {
                end_orphans(&state.join("launchers"), scope.as_ref().map(|scope| scope.tag.clone()), own);
            });
            let _ = timeout(LAST_RITES, ending).await;
        }
    }
}
