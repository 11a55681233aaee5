//! The life of a session, as one table of what can happen when.

/// Why a session ended.
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

    /// Whether it is only for sessions at rest.
    fn spares_the_busy(self) -> bool {
        matches!(self, Self::IdleExpired | Self::AgeExpired | Self::Evicted)
    }
}

/// Where a session is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    Starting,
    Idle,
    Busy,
    Stopping(EndReason),
    Ended(EndReason),
}

/// What happens to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    Started,
    CallStarted,
    CallFinished,
    Stop(EndReason),
    Ended,
}

/// A change that cannot happen to a session in this state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a session that is {state:?} cannot see {change:?}")]
pub struct Impossible {
    state: State,
    change: Change,
}

impl State {
    /// The state after a change.
    pub fn after(self, change: Change) -> Result<Self, Impossible> {
        match (self, change) {
            (Self::Starting, Change::Started) | (Self::Busy, Change::CallFinished) => Ok(Self::Idle),
            (Self::Idle, Change::CallStarted) => Ok(Self::Busy),
            (Self::Idle, Change::Stop(reason)) => Ok(Self::Stopping(reason)),
            (Self::Starting | Self::Busy, Change::Stop(reason)) if !reason.spares_the_busy() => {
                Ok(Self::Stopping(reason))
            }
            // The first reason stays; a call that was under way may still finish.
            (Self::Stopping(first), Change::Stop(_) | Change::CallFinished) => Ok(Self::Stopping(first)),
            (Self::Stopping(reason), Change::Ended) => Ok(Self::Ended(reason)),
            (state, change) => Err(Impossible { state, change }),
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
    fn the_whole_table() {
        let states = [State::Starting, State::Idle, State::Busy];
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
        fn a_session_ends_once_and_for_one_reason(path in proptest::collection::vec(0..10_usize, 0..60)) {
            let (mut state, mut reason) = (State::Starting, None);
            for step in path {
                let Ok(next) = state.after(changes()[step]) else { continue };
                prop_assert!(!matches!(state, State::Ended(_)), "nothing comes after the end");
                if let State::Stopping(why) | State::Ended(why) = next {
                    prop_assert_eq!(*reason.get_or_insert(why), why);
                } else {
                    prop_assert_eq!(reason, None, "what stops does not come back");
                }
                state = next;
            }
        }
    }
}
