//! Supervises one server: a task that passes events to the state machine and performs its actions.
//!
//! The task only waits for the next event. Work that takes time, or that may hang or panic (connecting, watching,
//! stopping), runs in a separate task, which is aborted when other work replaces it.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ringfence_entries::ServerEntry;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::FleetState;
use super::connect::{Connect, ConnectFailure, Link, LinkEnd, Stage};
use super::events;
use super::failure::ServerFailure;
use super::health;
use super::info::bounded_tail;
use super::slot::{Connection, Desired, Goal, Slot, View};
use super::start_limiter::StartPermit;
use super::state_machine::{Action, Event, Idle, Next, State, Status};

pub(super) struct Supervisor<C: Connect> {
    fleet: Arc<FleetState<C>>,
    slot: Arc<Slot<C::Link>>,
    desired: watch::Receiver<Desired>,
    /// The desired state that was applied last; None before the first.
    applied: Option<Desired>,
    view: View<C::Link>,
    work: Work<C::Link>,
    timer: Option<Instant>,
    attempt_started: Instant,
    /// The progress of the current or last attempt.
    stage: Option<Stage>,
    /// The duration of the connection that ended last, until it is recorded.
    uptime: Option<Duration>,
    /// Whether the server was connected before, so that the next connection is a restart.
    was_connected: bool,
}

/// The work in progress.
#[derive(Default)]
enum Work<L> {
    #[default]
    Nothing,
    Queue(Pin<Box<dyn Future<Output = StartPermit> + Send>>),
    Start(AbortOnDropHandle<Result<L, ConnectFailure>>),
    Watch(AbortOnDropHandle<LinkEnd>),
    Stop(AbortOnDropHandle<()>),
}

enum WorkResult<L> {
    Permit(StartPermit),
    Connected(L),
    Failed(ConnectFailure),
    /// Connecting or watching panicked.
    Panicked,
    Lost(LinkEnd),
    Stopped,
}

/// The reason for which the supervisor continues.
enum Trigger<L> {
    DesiredChanged,
    StartRequested,
    WorkDone(WorkResult<L>),
    TimerExpired,
}

impl<L> Work<L> {
    async fn result(&mut self) -> WorkResult<L> {
        match self {
            Self::Nothing => pending().await,
            Self::Queue(permit) => WorkResult::Permit(permit.await),
            Self::Start(start) => match start.await {
                Ok(Ok(link)) => WorkResult::Connected(link),
                Ok(Err(failure)) => WorkResult::Failed(failure),
                Err(_) => WorkResult::Panicked,
            },
            Self::Watch(watch) => watch.await.map_or(WorkResult::Panicked, WorkResult::Lost),
            Self::Stop(stop) => {
                let _ = stop.await;
                WorkResult::Stopped
            }
        }
    }
}

impl<C: Connect> Supervisor<C> {
    pub(super) fn new(fleet: Arc<FleetState<C>>, slot: Arc<Slot<C::Link>>) -> Self {
        let view = View { state: State::Idle(Idle::Stopped), ..slot.view.borrow().clone() };
        Self {
            desired: slot.desired.subscribe(),
            fleet,
            slot,
            applied: None,
            view,
            work: Work::Nothing,
            timer: None,
            attempt_started: Instant::now(),
            stage: None,
            uptime: None,
            was_connected: false,
        }
    }

    /// Runs until the server is stopped and its removal is requested.
    pub(super) async fn run(mut self) {
        self.apply_desired();
        loop {
            self.publish();
            if self.view.state == State::Idle(Idle::Stopped) && self.fleet.remove_if_requested(&self.slot) {
                return;
            }
            match self.next().await {
                Trigger::DesiredChanged => self.apply_desired(),
                Trigger::StartRequested => self.handle_event(Event::StartRequested, None),
                Trigger::WorkDone(result) => self.on_work_done(result),
                Trigger::TimerExpired => self.on_timer(),
            }
        }
    }

    async fn next(&mut self) -> Trigger<C::Link> {
        let timer = self.timer;
        let timer = async move {
            match timer {
                Some(at) => tokio::time::sleep_until(at).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            Ok(()) = self.desired.changed() => Trigger::DesiredChanged,
            () = self.slot.start_requested.notified() => Trigger::StartRequested,
            result = self.work.result() => Trigger::WorkDone(result),
            () = timer => Trigger::TimerExpired,
        }
    }

    fn apply_desired(&mut self) {
        let desired = self.desired.borrow_and_update().clone();
        let applied = self.applied.as_ref();
        let can_continue =
            applied.is_some_and(|applied| applied.goal.allows_start() && applied.has_same_start(&desired));
        let is_restart = applied.is_some_and(|applied| applied.restarts != desired.restarts);
        self.view.applied_version = desired.version;
        let event = match desired.goal {
            Goal::Run if can_continue && self.view.state.status() != Status::Idle => None,
            Goal::RunOnDemand if can_continue => None,
            Goal::RunOnDemand if !is_restart => Some(Event::Stop(Idle::Unused)),
            Goal::Run | Goal::RunOnDemand => Some(Event::Start),
            Goal::Disable => Some(Event::Stop(Idle::Disabled)),
            Goal::Remove => Some(Event::Stop(Idle::Stopped)),
        };
        self.applied = Some(desired);
        if let Some(event) = event {
            self.view.failure = None;
            self.handle_event(event, None);
        }
    }

    fn on_work_done(&mut self, result: WorkResult<C::Link>) {
        let is_start = matches!(self.work, Work::Start(_));
        self.work = Work::Nothing;
        match result {
            WorkResult::Permit(permit) => self.handle_event(Event::Permitted, Some(permit)),
            WorkResult::Connected(link) => self.on_connected(link),
            WorkResult::Failed(failure) => self.on_attempt_failed(failure),
            WorkResult::Panicked if is_start => {
                let phase = self.stage().phase();
                self.on_attempt_failed(ConnectFailure::new(phase, "connecting to the server panicked"));
            }
            WorkResult::Panicked => {
                let message = "the health check of the server panicked".into();
                self.on_connection_lost(&LinkEnd { message, hints: Vec::new() });
            }
            WorkResult::Lost(end) => self.on_connection_lost(&end),
            WorkResult::Stopped => self.on_stopped(Event::Stopped),
        }
    }

    fn on_timer(&mut self) {
        self.timer = None;
        match self.view.state {
            State::Connecting(_) => {
                let (entry, phase) = (self.entry(), self.stage().phase());
                let limit = self.fleet.options.startup_timeout(&entry).as_secs_f64();
                let message = format!("not ready within {limit} s");
                let hints = ["raise `startup_timeout_sec` in the `box` of its entry".to_owned()];
                let hints = if entry.transport.mode() == "stdio" { &hints[..] } else { &[] };
                self.handle_failure(Event::TimerExpired, ServerFailure::new(phase, &message, hints));
            }
            State::Stopping(_) => {
                events::abandoned(&self.entry(), self.fleet.options.stop_timeout);
                self.on_stopped(Event::TimerExpired);
            }
            _ => self.handle_event(Event::TimerExpired, None),
        }
    }

    fn on_connected(&mut self, link: C::Link) {
        let (took, tools) = (self.attempt_started.elapsed(), link.tool_count());
        self.view.connection = Some(Arc::new(Connection::new(link)));
        self.view.failure = None;
        self.view.stderr = Arc::default();
        self.view.restarts += u32::from(self.was_connected);
        events::started(&self.fleet.audit, &self.entry(), took, tools, self.was_connected);
        self.was_connected = true;
        self.handle_event(Event::Connected, None);
    }

    fn on_attempt_failed(&mut self, failure: ConnectFailure) {
        let event = Event::Failed { is_transient: failure.is_transient };
        let shown = ServerFailure::from_attempt(&failure);
        self.view.stderr = bounded_tail(failure.stderr).into();
        self.handle_failure(event, shown);
    }

    fn on_connection_lost(&mut self, end: &LinkEnd) {
        if let Some(connection) = &self.view.connection {
            self.view.stderr = bounded_tail(connection.link.stderr_tail()).into();
        }
        self.handle_failure(Event::Lost, ServerFailure::from_link_end(end));
    }

    fn on_stopped(&mut self, event: Event) {
        let is_restart = self.view.state == State::Stopping(Next::Attempt(1)) && self.view.failure.is_none();
        if is_restart {
            events::stopped(&self.fleet.audit, &self.entry(), "restart", self.uptime.take());
        }
        self.handle_event(event, None);
    }

    fn handle_failure(&mut self, event: Event, failure: ServerFailure) {
        let failure = Arc::new(failure);
        self.view.failure = Some(failure.clone());
        self.handle_event(event, None);
        self.uptime = None;
        let retry_delay = match self.view.state {
            State::BackingOff(attempt) | State::Stopping(Next::BackOff(attempt)) => {
                Some(self.fleet.options.retry_delay(attempt))
            }
            _ => None,
        };
        events::failed(&self.fleet.audit, &self.entry(), &failure, self.view.state, retry_delay);
    }

    /// Passes an event to the state machine, and performs the action that follows. `permit` is for `Event::Permitted`.
    fn handle_event(&mut self, event: Event, permit: Option<StartPermit>) {
        let Some((state, action)) = self.view.state.after(event) else { return };
        self.view.state = state;
        if action != Action::Continue {
            self.timer = None;
        }
        match action {
            Action::Continue => {}
            Action::Idle => {
                self.work = Work::Nothing;
                events::stopped(&self.fleet.audit, &self.entry(), state.status().name(), self.uptime.take());
            }
            Action::Queue => self.work = Work::Queue(Box::pin(self.fleet.start_limiter.acquire())),
            Action::Connect => self.connect(permit),
            Action::Watch => self.watch(),
            Action::BackOff(attempt) => self.set_timer(self.fleet.options.retry_delay(attempt)),
            Action::CoolDown => self.set_timer(self.fleet.options.cool_down),
            Action::Stop => self.stop(),
        }
    }

    fn connect(&mut self, permit: Option<StartPermit>) {
        let Some(permit) = permit else { return };
        let (fleet, entry) = (self.fleet.clone(), self.entry());
        let stage = Stage::initial(&entry);
        self.stage = Some(stage.clone());
        self.attempt_started = Instant::now();
        self.timer = Some(self.attempt_started + fleet.options.startup_timeout(&entry));
        let tasks = &self.fleet.tasks;
        self.work = Work::Start(AbortOnDropHandle::new(
            tasks.spawn(async move { fleet.start_limiter.run(permit, fleet.connect.connect(&entry, &stage)).await }),
        ));
    }

    fn watch(&mut self) {
        let Some(connection) = &self.view.connection else { return };
        let watch = health::watch(connection.link.clone(), self.fleet.options.probe_period);
        self.work = Work::Watch(AbortOnDropHandle::new(self.fleet.tasks.spawn(watch)));
        self.set_timer(self.fleet.options.stable_after);
    }

    fn stop(&mut self) {
        let start = match std::mem::take(&mut self.work) {
            Work::Start(start) => Some(start),
            Work::Nothing | Work::Queue(_) | Work::Watch(_) | Work::Stop(_) => None,
        };
        let connection = self.view.connection.take();
        self.uptime = connection.as_ref().map(|connection| connection.connected_at.elapsed());
        let link = connection.map(|connection| connection.link.clone());
        let stop = self.fleet.tasks.spawn(async move {
            // The attempt may complete in the moment in which it is aborted.
            let connected_meanwhile = match start {
                Some(start) => {
                    start.abort();
                    start.await.ok().and_then(Result::ok).map(Arc::new)
                }
                None => None,
            };
            if let Some(link) = link.or(connected_meanwhile) {
                link.stop().await;
            }
        });
        self.work = Work::Stop(AbortOnDropHandle::new(stop));
        self.set_timer(self.fleet.options.stop_timeout);
    }

    fn set_timer(&mut self, duration: Duration) {
        self.timer = Some(Instant::now() + duration);
    }

    fn entry(&self) -> Arc<ServerEntry> {
        self.applied.as_ref().map_or_else(|| self.slot.entry(), |applied| applied.entry.clone())
    }

    fn stage(&self) -> Stage {
        self.stage.clone().unwrap_or_else(|| Stage::initial(&self.entry()))
    }

    fn publish(&self) {
        self.slot.view.send_replace(self.view.clone());
        self.fleet.notify_changed();
    }
}
