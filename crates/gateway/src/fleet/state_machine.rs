//! The states of one server, the events that change them, and the actions that follow.
//!
//! The state machine has no clock. A state has at most one timer, which the supervisor sets: the startup timeout, the
//! delay before the next attempt, the time after which a connection counts as stable, the cool-down after the last
//! attempt, the stop timeout.

use serde::Serialize;

/// Maximum number of attempts to connect a server. A stable connection resets the count; after the cool-down, a caller
/// that needs the server causes one more attempt.
pub(super) const MAX_ATTEMPTS: u8 = 4;

/// The state of a server. The numbers count the attempts since the count was reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum State {
    Idle(Idle),
    /// Waits for a start permit.
    Queued(u8),
    Connecting(u8),
    /// Zero once the connection is stable.
    Connected(u8),
    /// Waits for the next attempt.
    BackingOff(u8),
    Failed {
        attempt: u8,
        /// Whether a caller that needs the server causes another attempt.
        has_cooled_down: bool,
    },
    /// The attempt or the connection is being stopped. Nothing else starts before that is done.
    Stopping(Next),
}

/// The reason for which a server does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Idle {
    /// It starts when a caller needs it.
    Unused,
    Disabled,
    Stopped,
}

/// The state after `Stopping`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Next {
    Idle(Idle),
    Attempt(u8),
    BackOff(u8),
    Fail(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Event {
    /// The server must run: it is started anew, and the attempts are counted from zero.
    Start,
    /// The server must not run.
    Stop(Idle),
    /// A caller needs a server that is idle, or whose attempts have failed.
    StartRequested,
    /// The start permit was acquired.
    Permitted,
    Connected,
    /// The attempt failed. There is nothing to stop.
    Failed {
        is_transient: bool,
    },
    /// The connection was lost.
    Lost,
    /// The attempt or the connection is stopped.
    Stopped,
    TimerExpired,
}

/// An action of the supervisor. All but `Continue` replace the work in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Continue,
    Idle,
    Queue,
    Connect,
    Watch,
    /// Wait before the next attempt, after this many attempts.
    BackOff(u8),
    CoolDown,
    /// Stop the attempt or the connection.
    Stop,
}

/// The state of a server as people and programs see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    Connecting,
    Connected,
    Error,
    /// It starts when it is used.
    Idle,
    Disabled,
    Stopped,
}

impl Status {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Connected => "connected",
            Self::Error => "error",
            Self::Idle => "idle",
            Self::Disabled => "disabled",
            Self::Stopped => "stopped",
        }
    }
}

impl State {
    /// Returns the state after an event and the action that follows, or None if the event has no effect.
    pub(super) fn after(self, event: Event) -> Option<(Self, Action)> {
        let step = match (self, event) {
            (Self::Idle(from), Event::Stop(to)) if from != to => (Self::Idle(to), Action::Continue),

            (Self::Queued(attempt), Event::Permitted) => (Self::Connecting(attempt), Action::Connect),
            // The server keeps its position in the queue.
            (Self::Queued(_), Event::Start) => (Self::Queued(1), Action::Continue),

            (Self::Connecting(attempt), Event::Connected) => (Self::Connected(attempt), Action::Watch),
            (Self::Connecting(attempt), Event::Failed { is_transient: true }) => Next::after_failure(attempt).begin(),
            (Self::Connecting(attempt), Event::Failed { is_transient: false }) => Next::Fail(attempt).begin(),
            (Self::Connecting(attempt), Event::TimerExpired) | (Self::Connected(attempt), Event::Lost) => {
                (Self::Stopping(Next::after_failure(attempt)), Action::Stop)
            }
            (Self::Connected(1..), Event::TimerExpired) => (Self::Connected(0), Action::Continue),

            (Self::BackingOff(attempt), Event::TimerExpired) => Next::Attempt(attempt + 1).begin(),
            (Self::Failed { attempt, has_cooled_down: false }, Event::TimerExpired) => {
                (Self::Failed { attempt, has_cooled_down: true }, Action::Continue)
            }
            // A single attempt: the count is not reset.
            (Self::Failed { has_cooled_down: true, .. }, Event::StartRequested) => Next::Attempt(MAX_ATTEMPTS).begin(),

            (Self::Stopping(next), Event::Stopped | Event::TimerExpired) => next.begin(),
            (Self::Stopping(_), Event::Start) => (Self::Stopping(Next::Attempt(1)), Action::Continue),
            (Self::Stopping(_), Event::Stop(idle)) => (Self::Stopping(Next::Idle(idle)), Action::Continue),

            (Self::Connecting(_) | Self::Connected(_), Event::Start) => {
                (Self::Stopping(Next::Attempt(1)), Action::Stop)
            }
            (Self::Connecting(_) | Self::Connected(_), Event::Stop(idle)) => {
                (Self::Stopping(Next::Idle(idle)), Action::Stop)
            }
            (Self::Idle(_) | Self::BackingOff(_) | Self::Failed { .. }, Event::Start)
            | (Self::Idle(Idle::Unused), Event::StartRequested) => Next::Attempt(1).begin(),
            (Self::Queued(_) | Self::BackingOff(_) | Self::Failed { .. }, Event::Stop(idle)) => {
                Next::Idle(idle).begin()
            }
            _ => return None,
        };
        Some(step)
    }

    /// A server that is being stopped has the status of the state that follows.
    pub(super) fn status(self) -> Status {
        match self {
            Self::Queued(_) | Self::Connecting(_) | Self::BackingOff(_) => Status::Connecting,
            Self::Connected(_) => Status::Connected,
            Self::Failed { .. } => Status::Error,
            Self::Idle(Idle::Unused) => Status::Idle,
            Self::Idle(Idle::Disabled) => Status::Disabled,
            Self::Idle(Idle::Stopped) => Status::Stopped,
            Self::Stopping(next) => next.begin().0.status(),
        }
    }

    /// The number of attempts after the first since the count was reset.
    pub(super) fn retries(self) -> u8 {
        match self {
            Self::Idle(_) => 0,
            Self::Queued(attempt)
            | Self::Connecting(attempt)
            | Self::Connected(attempt)
            | Self::BackingOff(attempt)
            | Self::Failed { attempt, .. } => attempt.saturating_sub(1),
            Self::Stopping(next) => next.begin().0.retries(),
        }
    }

    /// Whether the first attempt has no result yet.
    pub(super) fn is_in_first_attempt(self) -> bool {
        matches!(self, Self::Queued(1) | Self::Connecting(1) | Self::Stopping(Next::Attempt(1)))
    }
}

impl Next {
    /// The state after a failure.
    fn after_failure(attempt: u8) -> Self {
        match attempt {
            // The connection was stable: no delay.
            0 => Self::Attempt(1),
            1..MAX_ATTEMPTS => Self::BackOff(attempt),
            MAX_ATTEMPTS.. => Self::Fail(attempt),
        }
    }

    fn begin(self) -> (State, Action) {
        match self {
            Self::Idle(idle) => (State::Idle(idle), Action::Idle),
            Self::Attempt(attempt) => (State::Queued(attempt), Action::Queue),
            Self::BackOff(attempt) => (State::BackingOff(attempt), Action::BackOff(attempt)),
            Self::Fail(attempt) => (State::Failed { attempt, has_cooled_down: false }, Action::CoolDown),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EVENTS: [Event; 12] = [
        Event::Start,
        Event::Stop(Idle::Unused),
        Event::Stop(Idle::Disabled),
        Event::Stop(Idle::Stopped),
        Event::StartRequested,
        Event::Permitted,
        Event::Connected,
        Event::Failed { is_transient: true },
        Event::Failed { is_transient: false },
        Event::Lost,
        Event::Stopped,
        Event::TimerExpired,
    ];

    /// All states that can be reached, in the order of the number of events.
    fn reachable() -> Vec<State> {
        let mut found = vec![State::Idle(Idle::Stopped)];
        let mut visited = 0;
        while let Some(state) = found.get(visited).copied() {
            visited += 1;
            for (next, _) in EVENTS.into_iter().filter_map(|event| state.after(event)) {
                if !found.contains(&next) {
                    found.push(next);
                }
            }
        }
        found
    }

    #[test]
    fn transition_table() {
        let rows: Vec<String> = reachable()
            .into_iter()
            .flat_map(|state| EVENTS.into_iter().map(move |event| (state, event)))
            .filter_map(|(state, event)| {
                let (next, action) = state.after(event)?;
                Some(format!("{state:?} + {event:?} = {next:?}, {action:?}"))
            })
            .collect();
        insta::assert_snapshot!(rows.join("\n"));
    }

    #[test]
    fn status_of_each_state() {
        let rows: Vec<String> = reachable()
            .into_iter()
            .map(|state| {
                let first = if state.is_in_first_attempt() { ", first attempt" } else { "" };
                format!("{state:?}: {}, {} retries{first}", state.status().name(), state.retries())
            })
            .collect();
        insta::assert_snapshot!(rows.join("\n"));
    }

    #[test]
    fn server_can_be_stopped_and_started_in_every_state() {
        for state in reachable() {
            let (stopped, _) = state.after(Event::Stop(Idle::Stopped)).unwrap_or((state, Action::Continue));
            let stopped = stopped.after(Event::Stopped).map_or(stopped, |(state, _)| state);
            assert_eq!(stopped, State::Idle(Idle::Stopped), "from {state:?}");
            let (started, _) = state.after(Event::Start).unwrap();
            let started = started.after(Event::Stopped).map_or(started, |(state, _)| state);
            assert_eq!(started, State::Queued(1), "from {state:?}");
        }
    }

    /// The work of a supervisor.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Work {
        Nothing,
        Queue,
        Attempt,
        Connection,
        Stop,
    }

    proptest! {
        #[test]
        fn no_work_is_leaked_and_attempts_are_limited(path in proptest::collection::vec(0..EVENTS.len(), 0..200)) {
            let (mut state, mut work, mut attempts) = (State::Idle(Idle::Stopped), Work::Nothing, 0);
            for event in path.into_iter().map(|step| EVENTS[step]) {
                let Some((next, action)) = state.after(event) else { continue };
                match (event, state) {
                    (Event::Start, _)
                    | (Event::StartRequested, State::Idle(_))
                    | (Event::TimerExpired, State::Connected(_)) => attempts = 0,
                    (Event::StartRequested, _) => attempts = MAX_ATTEMPTS - 1,
                    _ => {}
                }
                let is_done = matches!(event, Event::Failed { .. } | Event::Stopped)
                    || (event, work) == (Event::TimerExpired, Work::Stop);
                let remaining = if is_done { Work::Nothing } else { work };
                work = match action {
                    Action::Continue => work,
                    Action::Queue => {
                        prop_assert_eq!(remaining, Work::Nothing);
                        Work::Queue
                    }
                    Action::Connect => {
                        prop_assert_eq!(work, Work::Queue);
                        attempts += 1;
                        Work::Attempt
                    }
                    Action::Watch => {
                        prop_assert_eq!(work, Work::Attempt);
                        Work::Connection
                    }
                    Action::Stop => {
                        prop_assert!(matches!(work, Work::Attempt | Work::Connection));
                        Work::Stop
                    }
                    Action::Idle => {
                        prop_assert!(matches!(remaining, Work::Nothing | Work::Queue));
                        Work::Nothing
                    }
                    Action::BackOff(attempt) => {
                        prop_assert!((1..MAX_ATTEMPTS).contains(&attempt));
                        prop_assert_eq!(remaining, Work::Nothing);
                        Work::Nothing
                    }
                    Action::CoolDown => {
                        prop_assert_eq!(remaining, Work::Nothing);
                        Work::Nothing
                    }
                };
                prop_assert!(attempts <= MAX_ATTEMPTS, "{} attempts", attempts);
                prop_assert!(next.retries() < MAX_ATTEMPTS);
                let expected = match next {
                    State::Idle(_) | State::BackingOff(_) | State::Failed { .. } => Work::Nothing,
                    State::Queued(_) => Work::Queue,
                    State::Connecting(_) => Work::Attempt,
                    State::Connected(_) => Work::Connection,
                    State::Stopping(_) => Work::Stop,
                };
                prop_assert_eq!(work, expected);
                state = next;
            }
        }
    }
}
