//! Contestants that take turns, so that the machine's mood is the same for all.

use std::time::Duration;

use anyhow::Result;

/// Somebody who can be timed again and again.
pub(super) struct Contestant<'a> {
    pub(super) name: String,
    turn: Box<dyn FnMut() -> Result<Duration> + 'a>,
    /// What the others wait for after its turn.
    pause: Duration,
    pub(super) times: Vec<Duration>,
    /// Why it dropped out.
    pub(super) failure: Option<String>,
}

impl<'a> Contestant<'a> {
    pub(super) fn new(name: impl Into<String>, turn: impl FnMut() -> Result<Duration> + 'a) -> Self {
        let (pause, times, failure) = (Duration::ZERO, Vec::new(), None);
        Self { name: name.into(), turn: Box::new(turn), pause, times, failure }
    }

    pub(super) fn resting(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }
}

/// Gives everybody so many turns; whoever fails has no more. The first few are not counted: they fill caches.
pub(super) fn take_turns(contestants: &mut [Contestant<'_>], turns: usize) {
    let uncounted = 1 + turns / 20;
    for turn in 0..uncounted + turns {
        for contestant in contestants.iter_mut().filter(|contestant| contestant.failure.is_none()) {
            match (contestant.turn)() {
                Ok(time) if turn >= uncounted => contestant.times.push(time),
                Ok(_) => {}
                Err(error) => contestant.failure = Some(format!("{error:#}")),
            }
            std::thread::sleep(contestant.pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn nobody_has_two_turns_in_a_row_and_who_fails_is_out() {
        let seen = RefCell::new(String::new());
        let turn = |name: char| {
            seen.borrow_mut().push(name);
            Ok(Duration::ZERO)
        };
        let mut contestants = [
            Contestant::new("a", || turn('a')),
            Contestant::new("out", || anyhow::bail!("not installed")),
            Contestant::new("b", || turn('b')),
        ];
        take_turns(&mut contestants, 3);
        assert_eq!(*seen.borrow(), "abababab");
        assert_eq!(contestants.each_ref().map(|contestant| contestant.times.len()), [3, 0, 3]);
        assert_eq!(contestants[1].failure.as_deref(), Some("not installed"));
    }
}
