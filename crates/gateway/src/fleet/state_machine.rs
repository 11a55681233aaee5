//! The life of one server, as one table of what can happen when and what is done about it.
//!
//! It has no clock. A state has at most one alarm, which the supervisor sets and rings: the time a start may take, the
//! time until the next attempt, the time after which a server has proven itself, the pause after giving up, the time
//! an end may take.

use serde::Serialize;

/// After so many attempts a server is given up, until it has run well or somebody asks for it.
pub(super) const MAX_ATTEMPTS: u8 = 4;

/// Where a server is in its life. Numbers count the attempts that were begun since it had its whole budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum State {
    Idle(Idle),
    /// Waits for a place among those that start.
    Queued(u8),
    Connecting(u8),
    /// Zero once it has proven itself.
    Connected(u8),
    /// Until the next attempt.
    BackingOff(u8),
    Failed {
        attempt: u8,
        /// Enough time has gone by to try again for somebody who asks.
        has_cooled_down: bool,
    },
    /// What was started is being ended. Nothing new begins before that is done.
    Stopping(Next),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Idle {
    Disabled,
    Stopped,
}

/// What follows an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Next {
    Idle(Idle),
    Attempt(u8),
    BackOff(u8),
    Fail(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Event {
    /// It shall run, from the beginning and with its whole budget.
    Start,
    Stop(Idle),
    /// Somebody waits for it.
    RetryRequested,
    /// It got a place to start.
    Permitted,
    Connected,
    /// The attempt failed and left nothing behind.
    Failed {
        is_transient: bool,
    },
    /// It was connected, and is no more.
    Lost,
    /// What was to be ended is.
    Stopped,
    TimerExpired,
}

/// What the supervisor does. All but `Keep` take the place of what was under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Continue,
    Idle,
    Queue,
    Connect,
    Watch,
    /// Wait after this many attempts.
    BackOff(u8),
    CoolDown,
    /// End the start or the connection.
    Stop,
}

/// What a person is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    Connecting,
    Connected,
    Error,
    Disabled,
    Stopped,
}

impl Status {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Connected => "connected",
            Self::Error => "error",
            Self::Disabled => "disabled",
            Self::Stopped => "stopped",
        }
    }
}

impl State {
    /// The state after an event and what is to be done, or nothing where the event means nothing.
    pub(super) fn after(self, event: Event) -> Option<(Self, Action)> {
        let step = match (self, event) {
            (Self::Idle(from), Event::Stop(to)) if from != to => (Self::Idle(to), Action::Continue),

            (Self::Queued(attempt), Event::Permitted) => (Self::Connecting(attempt), Action::Connect),
            // It keeps its turn.
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
            // One attempt, not a new budget.
            (Self::Failed { has_cooled_down: true, .. }, Event::RetryRequested) => Next::Attempt(MAX_ATTEMPTS).begin(),

            (Self::Stopping(next), Event::Stopped | Event::TimerExpired) => next.begin(),
            (Self::Stopping(_), Event::Start) => (Self::Stopping(Next::Attempt(1)), Action::Continue),
            (Self::Stopping(_), Event::Stop(rest)) => (Self::Stopping(Next::Idle(rest)), Action::Continue),

            (Self::Connecting(_) | Self::Connected(_), Event::Start) => {
                (Self::Stopping(Next::Attempt(1)), Action::Stop)
            }
            (Self::Connecting(_) | Self::Connected(_), Event::Stop(rest)) => {
                (Self::Stopping(Next::Idle(rest)), Action::Stop)
            }
            (Self::Idle(_) | Self::BackingOff(_) | Self::Failed { .. }, Event::Start) => Next::Attempt(1).begin(),
            (Self::Queued(_) | Self::BackingOff(_) | Self::Failed { .. }, Event::Stop(rest)) => {
                Next::Idle(rest).begin()
            }
            _ => return None,
        };
        Some(step)
    }

    /// A server that is being ended is already what it will be.
    pub(super) fn status(self) -> Status {
        match self {
            Self::Queued(_) | Self::Connecting(_) | Self::BackingOff(_) => Status::Connecting,
            Self::Connected(_) => Status::Connected,
            Self::Failed { .. } => Status::Error,
            Self::Idle(Idle::Disabled) => Status::Disabled,
            Self::Idle(Idle::Stopped) => Status::Stopped,
            Self::Stopping(next) => next.begin().0.status(),
        }
    }

    /// The attempts that were begun after one that failed.
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

    /// Whether nothing is known yet of how it will go.
    pub(super) fn is_in_first_attempt(self) -> bool {
        matches!(self, Self::Queued(1) | Self::Connecting(1) | Self::Stopping(Next::Attempt(1)))
    }
}

impl Next {
    /// What follows a failure.
    fn after_failure(attempt: u8) -> Self {
        match attempt {
            // It had proven itself: no reason to wait.
            0 => Self::Attempt(1),
            1..MAX_ATTEMPTS => Self::BackOff(attempt),
            MAX_ATTEMPTS.. => Self::Fail(attempt),
        }
    }

    fn begin(self) -> (State, Action) {
        match self {
            Self::Idle(rest) => (State::Idle(rest), Action::Idle),
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

    const EVENTS: [Event; 11] = [
        Event::Start,
        Event::Stop(Idle::Disabled),
        Event::Stop(Idle::Stopped),
        Event::RetryRequested,
        Event::Permitted,
        Event::Connected,
        Event::Failed { is_transient: true },
        Event::Failed { is_transient: false },
        Event::Lost,
        Event::Stopped,
        Event::TimerExpired,
    ];

    /// Every state that can be reached, with the shortest way there first.
    fn reachable() -> Vec<State> {
        let mut found = vec![State::Idle(Idle::Stopped)];
        let mut looked_at = 0;
        while let Some(state) = found.get(looked_at).copied() {
            looked_at += 1;
            for (next, _) in EVENTS.into_iter().filter_map(|event| state.after(event)) {
                if !found.contains(&next) {
                    found.push(next);
                }
            }
        }
        found
    }

    #[test]
    fn the_whole_table() {
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
    fn what_a_person_is_told() {
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
    fn every_server_can_be_stopped_and_started_from_everywhere() {
        for state in reachable() {
            let (rested, _) = state.after(Event::Stop(Idle::Stopped)).unwrap_or((state, Action::Continue));
            let rested = rested.after(Event::Stopped).map_or(rested, |(state, _)| state);
            assert_eq!(rested, State::Idle(Idle::Stopped), "from {state:?}");
            let (started, _) = state.after(Event::Start).unwrap();
            let started = started.after(Event::Stopped).map_or(started, |(state, _)| state);
            assert_eq!(started, State::Queued(1), "from {state:?}");
        }
    }

    /// What a supervisor has in its hands.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Holds {
        Nothing,
        Turn,
        Start,
        Link,
        End,
    }

    proptest! {
        #[test]
        fn nothing_is_leaked_and_no_budget_exceeded(path in proptest::collection::vec(0..EVENTS.len(), 0..200)) {
            let (mut state, mut holds, mut begun) = (State::Idle(Idle::Stopped), Holds::Nothing, 0);
            for event in path.into_iter().map(|step| EVENTS[step]) {
                let Some((next, action)) = state.after(event) else { continue };
                match (event, state) {
                    (Event::Start, _) | (Event::TimerExpired, State::Connected(_)) => begun = 0,
                    (Event::RetryRequested, _) => begun = MAX_ATTEMPTS - 1,
                    _ => {}
                }
                let is_over = matches!(event, Event::Failed { .. } | Event::Stopped)
                    || (event, holds) == (Event::TimerExpired, Holds::End);
                let free = if is_over { Holds::Nothing } else { holds };
                holds = match action {
                    Action::Continue => holds,
                    Action::Queue => {
                        prop_assert_eq!(free, Holds::Nothing);
                        Holds::Turn
                    }
                    Action::Connect => {
                        prop_assert_eq!(holds, Holds::Turn);
                        begun += 1;
                        Holds::Start
                    }
                    Action::Watch => {
                        prop_assert_eq!(holds, Holds::Start);
                        Holds::Link
                    }
                    Action::Stop => {
                        prop_assert!(matches!(holds, Holds::Start | Holds::Link));
                        Holds::End
                    }
                    Action::Idle => {
                        prop_assert!(matches!(free, Holds::Nothing | Holds::Turn));
                        Holds::Nothing
                    }
                    Action::BackOff(attempt) => {
                        prop_assert!((1..MAX_ATTEMPTS).contains(&attempt));
                        prop_assert_eq!(free, Holds::Nothing);
                        Holds::Nothing
                    }
                    Action::CoolDown => {
                        prop_assert_eq!(free, Holds::Nothing);
                        Holds::Nothing
                    }
                };
                prop_assert!(begun <= MAX_ATTEMPTS, "{} attempts", begun);
                prop_assert!(next.retries() < MAX_ATTEMPTS);
                let expected = match next {
                    State::Idle(_) | State::BackingOff(_) | State::Failed { .. } => Holds::Nothing,
                    State::Queued(_) => Holds::Turn,
                    State::Connecting(_) => Holds::Start,
                    State::Connected(_) => Holds::Link,
                    State::Stopping(_) => Holds::End,
                };
                prop_assert_eq!(holds, expected);
                state = next;
            }
        }
    }
}
