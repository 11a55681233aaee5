//! The life of one server, as one table of what can happen when and what is done about it.
//!
//! It has no clock. A state has at most one alarm, which the supervisor sets and rings: the time a start may take, the
//! time until the next attempt, the time after which a server has proven itself, the pause after giving up, the time
//! an end may take.

use serde::Serialize;

/// After so many attempts a server is given up, until it has run well or somebody asks for it.
pub(super) const ATTEMPTS: u8 = 4;

/// Where a server is in its life. Numbers count the attempts that were begun since it had its whole budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum State {
    Resting(Rest),
    /// Waits for a place among those that start.
    Queued(u8),
    Connecting(u8),
    /// Zero once it has proven itself.
    Connected(u8),
    /// Until the next attempt.
    Waiting(u8),
    Failed {
        attempt: u8,
        /// Enough time has gone by to try again for somebody who asks.
        has_cooled: bool,
    },
    /// What was started is being ended. Nothing new begins before that is done.
    Ending(Next),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Rest {
    Disabled,
    Stopped,
}

/// What follows an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Next {
    Rest(Rest),
    Attempt(u8),
    Wait(u8),
    Fail(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Event {
    /// It shall run, from the beginning and with its whole budget.
    Start,
    Rest(Rest),
    /// Somebody waits for it.
    Wanted,
    /// It got a place to start.
    Admitted,
    Linked,
    /// The attempt failed and left nothing behind.
    Failed {
        is_transient: bool,
    },
    /// It was connected, and is no more.
    Lost,
    /// What was to be ended is.
    Ended,
    Alarm,
}

/// What the supervisor does. All but `Keep` take the place of what was under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Keep,
    Rest,
    Queue,
    Connect,
    Serve,
    /// Wait after this many attempts.
    Wait(u8),
    CoolDown,
    /// End the start or the connection.
    End,
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
            (Self::Resting(from), Event::Rest(to)) if from != to => (Self::Resting(to), Action::Keep),

            (Self::Queued(attempt), Event::Admitted) => (Self::Connecting(attempt), Action::Connect),
            // It keeps its turn.
            (Self::Queued(_), Event::Start) => (Self::Queued(1), Action::Keep),

            (Self::Connecting(attempt), Event::Linked) => (Self::Connected(attempt), Action::Serve),
            (Self::Connecting(attempt), Event::Failed { is_transient: true }) => Next::after(attempt).begin(),
            (Self::Connecting(attempt), Event::Failed { is_transient: false }) => Next::Fail(attempt).begin(),
            (Self::Connecting(attempt), Event::Alarm) | (Self::Connected(attempt), Event::Lost) => {
                (Self::Ending(Next::after(attempt)), Action::End)
            }
            (Self::Connected(1..), Event::Alarm) => (Self::Connected(0), Action::Keep),

            (Self::Waiting(attempt), Event::Alarm) => Next::Attempt(attempt + 1).begin(),
            (Self::Failed { attempt, has_cooled: false }, Event::Alarm) => {
                (Self::Failed { attempt, has_cooled: true }, Action::Keep)
            }
            // One attempt, not a new budget.
            (Self::Failed { has_cooled: true, .. }, Event::Wanted) => Next::Attempt(ATTEMPTS).begin(),

            (Self::Ending(next), Event::Ended | Event::Alarm) => next.begin(),
            (Self::Ending(_), Event::Start) => (Self::Ending(Next::Attempt(1)), Action::Keep),
            (Self::Ending(_), Event::Rest(rest)) => (Self::Ending(Next::Rest(rest)), Action::Keep),

            (Self::Connecting(_) | Self::Connected(_), Event::Start) => (Self::Ending(Next::Attempt(1)), Action::End),
            (Self::Connecting(_) | Self::Connected(_), Event::Rest(rest)) => {
                (Self::Ending(Next::Rest(rest)), Action::End)
            }
            (Self::Resting(_) | Self::Waiting(_) | Self::Failed { .. }, Event::Start) => Next::Attempt(1).begin(),
            (Self::Queued(_) | Self::Waiting(_) | Self::Failed { .. }, Event::Rest(rest)) => Next::Rest(rest).begin(),
            _ => return None,
        };
        Some(step)
    }

    /// A server that is being ended is already what it will be.
    pub(super) fn status(self) -> Status {
        match self {
            Self::Queued(_) | Self::Connecting(_) | Self::Waiting(_) => Status::Connecting,
            Self::Connected(_) => Status::Connected,
            Self::Failed { .. } => Status::Error,
            Self::Resting(Rest::Disabled) => Status::Disabled,
            Self::Resting(Rest::Stopped) => Status::Stopped,
            Self::Ending(next) => next.begin().0.status(),
        }
    }

    /// The attempts that were begun after one that failed.
    pub(super) fn retries(self) -> u8 {
        match self {
            Self::Resting(_) => 0,
            Self::Queued(attempt)
            | Self::Connecting(attempt)
            | Self::Connected(attempt)
            | Self::Waiting(attempt)
            | Self::Failed { attempt, .. } => attempt.saturating_sub(1),
            Self::Ending(next) => next.begin().0.retries(),
        }
    }

    /// Whether nothing is known yet of how it will go.
    pub(super) fn is_in_first_attempt(self) -> bool {
        matches!(self, Self::Queued(1) | Self::Connecting(1) | Self::Ending(Next::Attempt(1)))
    }
}

impl Next {
    /// What follows a failure.
    fn after(attempt: u8) -> Self {
        match attempt {
            // It had proven itself: no reason to wait.
            0 => Self::Attempt(1),
            1..ATTEMPTS => Self::Wait(attempt),
            ATTEMPTS.. => Self::Fail(attempt),
        }
    }

    fn begin(self) -> (State, Action) {
        match self {
            Self::Rest(rest) => (State::Resting(rest), Action::Rest),
            Self::Attempt(attempt) => (State::Queued(attempt), Action::Queue),
            Self::Wait(attempt) => (State::Waiting(attempt), Action::Wait(attempt)),
            Self::Fail(attempt) => (State::Failed { attempt, has_cooled: false }, Action::CoolDown),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EVENTS: [Event; 11] = [
        Event::Start,
        Event::Rest(Rest::Disabled),
        Event::Rest(Rest::Stopped),
        Event::Wanted,
        Event::Admitted,
        Event::Linked,
        Event::Failed { is_transient: true },
        Event::Failed { is_transient: false },
        Event::Lost,
        Event::Ended,
        Event::Alarm,
    ];

    /// Every state that can be reached, with the shortest way there first.
    fn reachable() -> Vec<State> {
        let mut found = vec![State::Resting(Rest::Stopped)];
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
            let (rested, _) = state.after(Event::Rest(Rest::Stopped)).unwrap_or((state, Action::Keep));
            let rested = rested.after(Event::Ended).map_or(rested, |(state, _)| state);
            assert_eq!(rested, State::Resting(Rest::Stopped), "from {state:?}");
            let (started, _) = state.after(Event::Start).unwrap();
            let started = started.after(Event::Ended).map_or(started, |(state, _)| state);
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
            let (mut state, mut holds, mut begun) = (State::Resting(Rest::Stopped), Holds::Nothing, 0);
            for event in path.into_iter().map(|step| EVENTS[step]) {
                let Some((next, action)) = state.after(event) else { continue };
                match (event, state) {
                    (Event::Start, _) | (Event::Alarm, State::Connected(_)) => begun = 0,
                    (Event::Wanted, _) => begun = ATTEMPTS - 1,
                    _ => {}
                }
                let is_over = matches!(event, Event::Failed { .. } | Event::Ended)
                    || (event, holds) == (Event::Alarm, Holds::End);
                let free = if is_over { Holds::Nothing } else { holds };
                holds = match action {
                    Action::Keep => holds,
                    Action::Queue => {
                        prop_assert_eq!(free, Holds::Nothing);
                        Holds::Turn
                    }
                    Action::Connect => {
                        prop_assert_eq!(holds, Holds::Turn);
                        begun += 1;
                        Holds::Start
                    }
                    Action::Serve => {
                        prop_assert_eq!(holds, Holds::Start);
                        Holds::Link
                    }
                    Action::End => {
                        prop_assert!(matches!(holds, Holds::Start | Holds::Link));
                        Holds::End
                    }
                    Action::Rest => {
                        prop_assert!(matches!(free, Holds::Nothing | Holds::Turn));
                        Holds::Nothing
                    }
                    Action::Wait(attempt) => {
                        prop_assert!((1..ATTEMPTS).contains(&attempt));
                        prop_assert_eq!(free, Holds::Nothing);
                        Holds::Nothing
                    }
                    Action::CoolDown => {
                        prop_assert_eq!(free, Holds::Nothing);
                        Holds::Nothing
                    }
                };
                prop_assert!(begun <= ATTEMPTS, "{} attempts", begun);
                prop_assert!(next.retries() < ATTEMPTS);
                let expected = match next {
                    State::Resting(_) | State::Waiting(_) | State::Failed { .. } => Holds::Nothing,
                    State::Queued(_) => Holds::Turn,
                    State::Connecting(_) => Holds::Start,
                    State::Connected(_) => Holds::Link,
                    State::Ending(_) => Holds::End,
                };
                prop_assert_eq!(holds, expected);
                state = next;
            }
        }
    }
}
