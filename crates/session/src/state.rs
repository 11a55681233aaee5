//! The life cycle of a session as one table of transitions, and the state that a live session shares.

mod live;

pub(crate) use live::{SessionState, UseGuard, now_s};

/// The reason why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndReason {
    Stopped,
    IdleExpired,
    AgeExpired,
    Evicted,
    SandboxLost,
    ShutDown,
}

impl EndReason {
    pub const ALL: [Self; 6] =
        [Self::Stopped, Self::IdleExpired, Self::AgeExpired, Self::Evicted, Self::SandboxLost, Self::ShutDown];

    /// The name in the audit log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::IdleExpired => "idle_expired",
            Self::AgeExpired => "age_expired",
            Self::Evicted => "evicted",
            Self::SandboxLost => "sandbox_lost",
            Self::ShutDown => "shut_down",
        }
    }

    /// Whether this reason ends idle sessions only.
    fn requires_idle(self) -> bool {
        matches!(self, Self::IdleExpired | Self::AgeExpired | Self::Evicted)
    }
}

/// The state of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    Starting,
    Idle,
    /// The number of running calls, at least one.
    Busy(usize),
    Stopping(EndReason),
    Ended(EndReason),
}

/// An event in the life of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    Started,
    CallStarted,
    CallFinished,
    Stop(EndReason),
    Ended,
}

/// A change that the table does not have for a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a session in state {state:?} does not allow {change:?}")]
pub struct InvalidChange {
    state: State,
    change: Change,
}

impl State {
    /// Returns the state after a change.
    pub fn after(self, change: Change) -> Result<Self, InvalidChange> {
        match (self, change) {
            (Self::Starting, Change::Started) | (Self::Busy(1), Change::CallFinished) => Ok(Self::Idle),
            (Self::Idle, Change::CallStarted) => Ok(Self::Busy(1)),
            (Self::Busy(calls), Change::CallStarted) => Ok(Self::Busy(calls + 1)),
            (Self::Busy(calls @ 2..), Change::CallFinished) => Ok(Self::Busy(calls - 1)),
            (Self::Idle, Change::Stop(reason)) => Ok(Self::Stopping(reason)),
            (Self::Starting | Self::Busy(_), Change::Stop(reason)) if !reason.requires_idle() => {
                Ok(Self::Stopping(reason))
            }
            // The first reason remains. A call that was running may still finish.
            (Self::Stopping(first), Change::Stop(_) | Change::CallFinished) => Ok(Self::Stopping(first)),
            (Self::Stopping(reason), Change::Ended) => Ok(Self::Ended(reason)),
            (state, change) => Err(InvalidChange { state, change }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn changes() -> Vec<Change> {
        let plain = [Change::Started, Change::CallStarted, Change::CallFinished, Change::Ended];
        plain.into_iter().chain(EndReason::ALL.map(Change::Stop)).collect()
    }

    #[test]
    fn all_transitions() {
        let states = [State::Starting, State::Idle, State::Busy(1), State::Busy(2)];
        let reasons = [State::Stopping(EndReason::Evicted), State::Ended(EndReason::Evicted)];
        let rows: Vec<String> = states
            .into_iter()
            .chain(reasons)
            .flat_map(|state| changes().into_iter().map(move |change| (state, change)))
            .filter_map(|(state, change)| Some(format!("{state:?} + {change:?} = {:?}", state.after(change).ok()?)))
            .collect();
        insta::assert_snapshot!(rows.join("\n"));
    }

    proptest! {
        #[test]
        fn session_ends_once_and_for_one_reason(path in proptest::collection::vec(0..10_usize, 0..60)) {
            let (mut state, mut reason) = (State::Starting, None);
            for step in path {
                let Ok(next) = state.after(changes()[step]) else { continue };
                prop_assert!(!matches!(state, State::Ended(_)), "no change is possible after the end");
                if let State::Stopping(found) | State::Ended(found) = next {
                    prop_assert_eq!(*reason.get_or_insert(found), found);
                } else {
                    prop_assert_eq!(reason, None, "a stopping session does not become usable again");
                }
                state = next;
            }
        }
    }
}
