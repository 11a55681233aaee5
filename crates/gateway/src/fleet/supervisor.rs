//! Keeps one server as it is wanted: one task that drives the table of its life.
//!
//! The task itself waits for nothing but its next event. What may take time, hang or panic (connecting, watching,
//! ending) runs in a task of its own that is aborted when it is no longer of use.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ringfence_entries::ServerEntry;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::Shared;
use super::connect::{Connect, ConnectFailure, Link, LinkEnd, Stage};
use super::events;
use super::failure::ServerFailure;
use super::health;
use super::info::tail;
use super::slot::{Connection, Desired, Slot, View, Wish};
use super::start_limiter::Place;
use super::state_machine::{Action, Event, Next, Rest, State};

pub(super) struct Supervisor<C: Connect> {
    shared: Arc<Shared<C>>,
    slot: Arc<Slot<C::Link>>,
    desired: watch::Receiver<Desired>,
    /// What it goes by; nothing before it has looked.
    heeded: Option<Desired>,
    view: View<C::Link>,
    work: Work<C::Link>,
    alarm: Option<Instant>,
    begun: Instant,
    stage: Option<Stage>,
    ran: Option<Duration>,
    has_run: bool,
}

/// What is under way.
#[derive(Default)]
enum Work<L> {
    #[default]
    Nothing,
    Queue(Pin<Box<dyn Future<Output = Place> + Send>>),
    Start(AbortOnDropHandle<Result<L, ConnectFailure>>),
    Watch(AbortOnDropHandle<LinkEnd>),
    End(AbortOnDropHandle<()>),
}

/// What came of it.
enum Outcome<L> {
    Place(Place),
    Connected(L),
    Failed(ConnectFailure),
    /// Connecting or watching panicked.
    Broken,
    Lost(LinkEnd),
    Ended,
}

enum Occurrence<L> {
    Wish,
    Wanted,
    Outcome(Outcome<L>),
    Alarm,
}

impl<L> Work<L> {
    async fn outcome(&mut self) -> Outcome<L> {
        match self {
            Self::Nothing => pending().await,
            Self::Queue(place) => Outcome::Place(place.await),
            Self::Start(start) => match start.await {
                Ok(Ok(link)) => Outcome::Connected(link),
                Ok(Err(failure)) => Outcome::Failed(failure),
                Err(_) => Outcome::Broken,
            },
            Self::Watch(watch) => watch.await.map_or(Outcome::Broken, Outcome::Lost),
            Self::End(end) => {
                let _ = end.await;
                Outcome::Ended
            }
        }
    }
}

impl<C: Connect> Supervisor<C> {
    pub(super) fn new(shared: Arc<Shared<C>>, slot: Arc<Slot<C::Link>>) -> Self {
        let view = View { state: State::Resting(Rest::Stopped), ..slot.view.borrow().clone() };
        Self {
            desired: slot.desired.subscribe(),
            shared,
            slot,
            heeded: None,
            view,
            work: Work::Nothing,
            alarm: None,
            begun: Instant::now(),
            stage: None,
            ran: None,
            has_run: false,
        }
    }

    /// Until the server is to be removed, and is at rest.
    pub(super) async fn run(mut self) {
        self.heed();
        loop {
            self.publish();
            if self.view.state == State::Resting(Rest::Stopped) && self.shared.forget(&self.slot) {
                return;
            }
            match self.next().await {
                Occurrence::Wish => self.heed(),
                Occurrence::Wanted => self.pass(Event::Wanted, None),
                Occurrence::Outcome(outcome) => self.take(outcome),
                Occurrence::Alarm => self.ring(),
            }
        }
    }

    async fn next(&mut self) -> Occurrence<C::Link> {
        let alarm = self.alarm;
        let alarm = async move {
            match alarm {
                Some(alarm) => tokio::time::sleep_until(alarm).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            Ok(()) = self.desired.changed() => Occurrence::Wish,
            () = self.slot.wanted.notified() => Occurrence::Wanted,
            outcome = self.work.outcome() => Occurrence::Outcome(outcome),
            () = alarm => Occurrence::Alarm,
        }
    }

    fn heed(&mut self) {
        let desired = self.desired.borrow_and_update().clone();
        let is_going_on =
            self.heeded.as_ref().is_some_and(|heeded| heeded.wish == Wish::Run && heeded.is_same_start(&desired));
        self.view.heeded = desired.version;
        let event = match desired.wish {
            Wish::Run if is_going_on => None,
            Wish::Run => Some(Event::Start),
            Wish::Disable => Some(Event::Rest(Rest::Disabled)),
            Wish::Remove => Some(Event::Rest(Rest::Stopped)),
        };
        self.heeded = Some(desired);
        if let Some(event) = event {
            self.view.failure = None;
            self.pass(event, None);
        }
    }

    fn take(&mut self, outcome: Outcome<C::Link>) {
        let is_start = matches!(self.work, Work::Start(_));
        self.work = Work::Nothing;
        match outcome {
            Outcome::Place(place) => self.pass(Event::Admitted, Some(place)),
            Outcome::Connected(link) => self.open(link),
            Outcome::Failed(failure) => self.fail_attempt(failure),
            Outcome::Broken if is_start => {
                let phase = self.stage().phase();
                self.fail_attempt(ConnectFailure::new(phase, "the attempt to connect it panicked"));
            }
            Outcome::Broken => {
                let message = "the watch over it panicked".into();
                self.lose(&LinkEnd { message, hints: Vec::new() });
            }
            Outcome::Lost(end) => self.lose(&end),
            Outcome::Ended => self.end_is_over(Event::Ended),
        }
    }

    fn ring(&mut self) {
        self.alarm = None;
        match self.view.state {
            State::Connecting(_) => {
                let (entry, phase) = (self.entry(), self.stage().phase());
                let limit = self.shared.options.startup_timeout(&entry).as_secs_f64();
                let message = format!("it was not ready within {limit} s");
                let hints = ["startup_timeout_sec in the box of its entry gives a server more time".to_owned()];
                let hints = if entry.transport.mode() == "stdio" { &hints[..] } else { &[] };
                self.pass_failure(Event::Alarm, ServerFailure::new(phase, &message, hints));
            }
            State::Ending(_) => {
                events::abandoned(&self.entry(), self.shared.options.stop_within);
                self.end_is_over(Event::Alarm);
            }
            _ => self.pass(Event::Alarm, None),
        }
    }

    fn open(&mut self, link: C::Link) {
        let (took, tools) = (self.begun.elapsed(), link.tool_count());
        self.view.connection = Some(Arc::new(Connection::new(link)));
        self.view.failure = None;
        self.view.stderr = Arc::default();
        self.view.restarts += u32::from(self.has_run);
        events::started(&self.shared.audit, &self.entry(), took, tools, self.has_run);
        self.has_run = true;
        self.pass(Event::Linked, None);
    }

    fn fail_attempt(&mut self, failure: ConnectFailure) {
        let event = Event::Failed { is_transient: failure.is_transient };
        let told = ServerFailure::of_attempt(&failure);
        self.view.stderr = tail(failure.stderr).into();
        self.pass_failure(event, told);
    }

    fn lose(&mut self, end: &LinkEnd) {
        if let Some(connection) = &self.view.connection {
            self.view.stderr = tail(connection.link.stderr_tail()).into();
        }
        self.pass_failure(Event::Lost, ServerFailure::of_end(end));
    }

    fn end_is_over(&mut self, event: Event) {
        let is_restart = self.view.state == State::Ending(Next::Attempt(1)) && self.view.failure.is_none();
        if is_restart {
            events::stopped(&self.shared.audit, &self.entry(), "restart", self.ran.take());
        }
        self.pass(event, None);
    }

    fn pass_failure(&mut self, event: Event, failure: ServerFailure) {
        let failure = Arc::new(failure);
        self.view.failure = Some(failure.clone());
        self.pass(event, None);
        self.ran = None;
        let wait = match self.view.state {
            State::Waiting(attempt) | State::Ending(Next::Wait(attempt)) => {
                Some(self.shared.options.retry_after(attempt))
            }
            _ => None,
        };
        events::failed(&self.shared.audit, &self.entry(), &failure, self.view.state, wait);
    }

    /// Passes an event to the table and does what that says.
    fn pass(&mut self, event: Event, place: Option<Place>) {
        let before = self.view.state;
        let Some((state, action)) = before.after(event) else { return };
        self.view.state = state;
        if action != Action::Keep {
            self.alarm = None;
        }
        match action {
            Action::Keep => {}
            Action::Rest => {
                self.work = Work::Nothing;
                events::stopped(&self.shared.audit, &self.entry(), state.status().name(), self.ran.take());
            }
            Action::Queue => self.work = Work::Queue(Box::pin(self.shared.places.take())),
            Action::Connect => self.connect(place),
            Action::Serve => self.serve(),
            Action::Wait(attempt) => self.sleep(self.shared.options.retry_after(attempt)),
            Action::CoolDown => self.sleep(self.shared.options.cool_down),
            Action::End => self.end(),
        }
    }

    fn connect(&mut self, place: Option<Place>) {
        let Some(place) = place else { return };
        let (shared, entry) = (self.shared.clone(), self.entry());
        let stage = Stage::first_of(&entry);
        self.stage = Some(stage.clone());
        self.begun = Instant::now();
        self.alarm = Some(self.begun + shared.options.startup_timeout(&entry));
        let tasks = &self.shared.tasks;
        self.work = Work::Start(AbortOnDropHandle::new(
            tasks.spawn(async move { shared.places.hold(place, shared.connect.connect(&entry, &stage)).await }),
        ));
    }

    fn serve(&mut self) {
        let Some(connection) = &self.view.connection else { return };
        let watch = health::watch(connection.link.clone(), self.shared.options.health_period);
        self.work = Work::Watch(AbortOnDropHandle::new(self.shared.tasks.spawn(watch)));
        self.sleep(self.shared.options.proven_after);
    }

    fn end(&mut self) {
        let start = match std::mem::take(&mut self.work) {
            Work::Start(start) => Some(start),
            Work::Nothing | Work::Queue(_) | Work::Watch(_) | Work::End(_) => None,
        };
        let connection = self.view.connection.take();
        self.ran = connection.as_ref().map(|connection| connection.since.elapsed());
        let link = connection.map(|connection| connection.link.clone());
        let end = self.shared.tasks.spawn(async move {
            let made_meanwhile = match start {
                Some(start) => {
                    start.abort();
                    start.await.ok().and_then(Result::ok).map(Arc::new)
                }
                None => None,
            };
            if let Some(link) = link.or(made_meanwhile) {
                link.stop().await;
            }
        });
        self.work = Work::End(AbortOnDropHandle::new(end));
        self.sleep(self.shared.options.stop_within);
    }

    fn sleep(&mut self, duration: Duration) {
        self.alarm = Some(Instant::now() + duration);
    }

    fn entry(&self) -> Arc<ServerEntry> {
        self.heeded.as_ref().map_or_else(|| self.slot.entry(), |heeded| heeded.entry.clone())
    }

    fn stage(&self) -> Stage {
        self.stage.clone().unwrap_or_else(|| Stage::first_of(&self.entry()))
    }

    fn publish(&self) {
        self.slot.view.send_replace(self.view.clone());
        self.shared.changed();
    }
}
