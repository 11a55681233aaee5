//! One sandbox for servers: starts processes in it, hears how they end, and serves its way out.
//!
//! Dropped, everything in it is killed. Its launcher has no door: when this process dies, whatever way, its launcher
//! ends at once, and every such sandbox with it. None is ever taken over by another server.

use ringfence_core::sync::Mutex;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, MutexGuard};

use ringfence_backend::pipe;
use ringfence_backend::{Event, ExitStatus, SignalTarget};
use ringfence_core::{Command, Spec};
use rustix::process::Signal;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::phase::{Phase, StartFailure};
use super::tail::Tail;
use ringfence_backend::Instance;
use ringfence_backend::Launchers;
use ringfence_core::Kind;
use ringfence_egress::{DecisionLog, Policy, Proxy, Rule};

/// Decisions of the proxy that may wait to be noted.
const PENDING: usize = 64;

/// How a server's process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Exited(i32),
    Killed {
        signal: i32,
        for_memory: bool,
    },
    /// It went with its sandbox.
    Lost {
        for_memory: bool,
    },
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Killed { for_memory: true, .. } | Self::Lost { for_memory: true } => {
                f.write_str("was killed for going over its memory limit")
            }
            Self::Killed { signal, .. } => write!(f, "was ended by signal {signal}"),
            Self::Lost { .. } => f.write_str("was lost with its sandbox"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Life {
    Starting,
    Running,
    Refused(String),
    Ended(Ended),
}

/// A sandbox with the processes that were started in it.
pub(crate) struct Cell {
    inner: Arc<Inner>,
    _listening: AbortOnDropHandle<()>,
    _proxy: Option<AbortOnDropHandle<()>>,
}

struct Inner {
    guest: Instance,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    last: u32,
    living: BTreeMap<u32, watch::Sender<Life>>,
    /// When this one ends, so does everything.
    main: Option<u32>,
    is_lost: bool,
}

/// A process in a cell, with the host's ends of its pipes.
pub(crate) struct Inmate {
    number: u32,
    pub(crate) life: watch::Receiver<Life>,
    pub(crate) stdin: Sender,
    pub(crate) stdout: Receiver,
    pub(crate) stderr: Receiver,
}

/// A process whose pipes are somebody else's.
#[derive(Clone)]
pub(crate) struct InmateHandle {
    number: u32,
    life: watch::Receiver<Life>,
}

impl Cell {
    /// Makes one. What its proxy refuses is noted in `tail`.
    pub(crate) async fn make(
        launchers: &Launchers,
        spec: Spec,
        rules: Vec<Rule>,
        tail: Option<Arc<Tail>>,
    ) -> Result<Self, StartFailure> {
        let launchers = launchers.clone();
        // Goes on if nobody waits for it any more: only so is the sandbox that it makes ended, too.
        let launching = tokio::spawn(async move { launch(&launchers, spec).await });
        let (guest, listener) =
            launching.await.map_err(|error| StartFailure::transient(Phase::SessionCreate, error.to_string()))??;
        let proxy = listener.map(|listener| AbortOnDropHandle::new(serve(listener, rules, tail)));
        let inner = Arc::new(Inner { guest, table: Mutex::default() });
        let listening = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&inner).listen()));
        Ok(Self { inner, _listening: listening, _proxy: proxy })
    }

    /// Orders the start of a process; its life says what comes of it.
    pub(crate) fn start(
        &self,
        command: &Command,
        environment: &BTreeMap<String, String>,
    ) -> Result<Inmate, StartFailure> {
        let failed = |error: String| {
            StartFailure::transient(Phase::ProcessStart, format!("the process cannot be started: {error}"))
        };
        let streams = pipe::standard_streams().map_err(|errno| failed(errno.to_string()))?;
        let (theirs, [to_stdin, from_stdout, from_stderr]) = streams;
        let receive = |fd: OwnedFd| Receiver::from_owned_fd(fd).map_err(|error| failed(error.to_string()));
        let (number, life) = self.inner.table().admit();
        let inmate = Inmate {
            number,
            life,
            stdin: Sender::from_owned_fd(to_stdin).map_err(|error| failed(error.to_string()))?,
            stdout: receive(from_stdout)?,
            stderr: receive(from_stderr)?,
        };
        let descriptors = theirs.each_ref().map(AsFd::as_fd);
        self.inner.guest.control().spawn(number, command, environment, &descriptors).map_err(|error| {
            self.inner.table().living.remove(&number);
            failed(error.to_string())
        })?;
        Ok(inmate)
    }

    /// Ends the whole sandbox when this process ends.
    pub(crate) fn live_for(&self, process: &InmateHandle) {
        self.inner.table().main = Some(process.number);
        if matches!(*process.life.borrow(), Life::Ended(_) | Life::Refused(_)) {
            self.kill();
        }
    }

    /// Kills a process and its group unless it has ended by then.
    pub(crate) fn kill_at_last<'a>(&'a self, process: &InmateHandle) -> KillAtLast<'a> {
        KillAtLast { cell: self, process: process.clone() }
    }

    pub(crate) fn signal(&self, process: &InmateHandle, signal: Signal) {
        // A sandbox that is gone says so by itself.
        let target = if signal == Signal::KILL { SignalTarget::ProcessTree } else { SignalTarget::ProcessGroup };
        let _ = self.inner.guest.control().signal(process.number, signal, target);
    }

    pub(crate) fn kill(&self) {
        self.inner.guest.kill();
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.inner.table().is_lost
    }

    /// The init's number on the host: a person finds the sandbox by it.
    pub(crate) fn id(&self) -> String {
        self.inner.guest.pid().as_raw_nonzero().to_string()
    }

    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        self.inner.guest.gauge().map(|gauge| gauge.bytes())
    }

    /// Kills everything in it, and waits until nothing of it is left.
    pub(crate) async fn end(self) {
        self.kill();
        self.inner.guest.witness().gone().await;
        self.inner.guest.freed().await;
    }
}

/// Dropped, it kills a process that has not ended: whoever waited for it has given up.
pub(crate) struct KillAtLast<'a> {
    cell: &'a Cell,
    process: InmateHandle,
}

impl Drop for KillAtLast<'_> {
    fn drop(&mut self) {
        self.cell.signal(&self.process, Signal::KILL);
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        // The task that listens holds the guest too, for a moment more.
        self.kill();
    }
}

impl Inmate {
    pub(crate) fn handle(&self) -> InmateHandle {
        InmateHandle { number: self.number, life: self.life.clone() }
    }
}

impl InmateHandle {
    /// Waits until it runs.
    pub(crate) async fn started(&mut self) -> Result<(), String> {
        match self.life.wait_for(|life| *life != Life::Starting).await.map(|life| life.clone()) {
            Ok(Life::Refused(why)) => Err(why),
            Ok(_) => Ok(()),
            Err(_) => Err("its sandbox was lost".into()),
        }
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&self) -> Ended {
        let mut life = self.life.clone();
        let ended = life.wait_for(|life| matches!(life, Life::Ended(_) | Life::Refused(_))).await;
        match ended.as_deref() {
            Ok(Life::Ended(ended)) => *ended,
            _ => Ended::Lost { for_memory: false },
        }
    }
}

impl Inner {
    async fn listen(self: Arc<Self>) {
        loop {
            match self.guest.event().await {
                Event::Started { process } => self.table().change(process, Life::Running),
                Event::StartFailed { process, errno } => {
                    self.table().change(process, Life::Refused(errno.to_string()));
                    self.end_with(process);
                }
                Event::Ended { process, status: end } => {
                    let ended = match end {
                        ExitStatus::Exited(code) => Ended::Exited(code),
                        ExitStatus::Killed(signal) => {
                            let for_memory = signal == Signal::KILL.as_raw() && self.guest.memory_kills() > 0;
                            Ended::Killed { signal, for_memory }
                        }
                    };
                    self.table().change(process, Life::Ended(ended));
                    self.end_with(process);
                }
                Event::Lost => break,
            }
        }
        // The limit may have been kept by a cgroup that killed the init itself.
        let for_memory = self.guest.memory_kills() > 0 || self.guest.is_breached().await;
        self.table().lose(Ended::Lost { for_memory });
    }

    fn end_with(&self, process: u32) {
        if self.table().main == Some(process) {
            self.guest.kill();
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
}

impl Table {
    fn admit(&mut self) -> (u32, watch::Receiver<Life>) {
        self.last += 1;
        let (sender, life) = watch::channel(Life::Starting);
        if self.is_lost {
            sender.send_replace(Life::Ended(Ended::Lost { for_memory: false }));
        } else {
            self.living.insert(self.last, sender);
        }
        (self.last, life)
    }

    fn change(&mut self, process: u32, life: Life) {
        let ends = life != Life::Running;
        if let Some(sender) = self.living.get(&process) {
            sender.send_replace(life);
        }
        if ends {
            self.living.remove(&process);
        }
    }

    fn lose(&mut self, ended: Ended) {
        self.is_lost = true;
        for sender in std::mem::take(&mut self.living).into_values() {
            sender.send_replace(Life::Ended(ended));
        }
    }
}

async fn launch(launchers: &Launchers, spec: Spec) -> Result<(Instance, Option<TcpListener>), StartFailure> {
    let environment = spec.environment.clone();
    let (mut launched, launcher) = launchers.launch(spec, false, None).await.map_err(|failure| {
        let made = match failure.kind {
            // The launcher was not to be had.
            Kind::Connection => StartFailure::transient(Phase::SessionCreate, failure.message),
            _ => StartFailure::lasting(Phase::BoxUnavailable, failure.message),
        };
        failure.hints.into_iter().fold(made, StartFailure::hint)
    })?;
    let listener = launched.listener.take();
    let guest = Instance::new(launched, launcher, environment).map_err(|error| {
        StartFailure::transient(Phase::SessionCreate, format!("the sandbox cannot be spoken to: {error}"))
    })?;
    Ok((guest, listener))
}

/// Serves the way out until it is aborted.
fn serve(listener: TcpListener, rules: Vec<Rule>, tail: Option<Arc<Tail>>) -> tokio::task::JoinHandle<()> {
    let (log, mut decisions) = DecisionLog::bounded(PENDING);
    let proxy = Proxy::new(Policy { rules }, log);
    tokio::spawn(async move {
        let note = async {
            while let Some(decision) = decisions.recv().await {
                let host = decision.host.map_or_else(|| "an unknown host".into(), |host| host.to_string());
                let port = decision.port.map_or_else(String::new, |port| format!(":{port}"));
                let text = format!("ringfence: egress to {host}{port}: {}", decision.reason);
                tracing::debug!("{text}");
                if let Some(tail) = tail.as_ref().filter(|_| !decision.is_allowed) {
                    tail.note(&text);
                }
            }
        };
        let (served, ()) = tokio::join!(proxy.serve(listener, std::future::pending()), note);
        if let Err(error) = served {
            tracing::warn!("the egress proxy of a server has stopped: {error}");
        }
    })
}
