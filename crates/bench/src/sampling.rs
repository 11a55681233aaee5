//! Takes samples of several candidates in turns, so that changes in the machine's speed affect all of them alike.

use std::time::Duration;

use anyhow::Result;

/// Something that is measured repeatedly.
pub(crate) struct Candidate<'a> {
    pub(crate) name: String,
    take_sample: Box<dyn FnMut() -> Result<Duration> + 'a>,
    /// Idle time after each of its samples.
    pause: Duration,
    pub(crate) times: Vec<Duration>,
    /// The error that ended its sampling.
    pub(crate) failure: Option<String>,
}

impl<'a> Candidate<'a> {
    pub(crate) fn new(name: impl Into<String>, take_sample: impl FnMut() -> Result<Duration> + 'a) -> Self {
        let (pause, times, failure) = (Duration::ZERO, Vec::new(), None);
        Self { name: name.into(), take_sample: Box::new(take_sample), pause, times, failure }
    }

    pub(crate) fn with_pause(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }
}

/// Takes `samples` samples of every candidate, one of each in turn. A candidate is dropped at its first failure. A few
/// samples before them fill caches and are not counted.
pub(crate) fn sample_in_turns(candidates: &mut [Candidate<'_>], samples: usize) {
    let uncounted = 1 + samples / 20;
    for round in 0..uncounted + samples {
        for candidate in candidates.iter_mut().filter(|candidate| candidate.failure.is_none()) {
            match (candidate.take_sample)() {
                Ok(time) if round >= uncounted => candidate.times.push(time),
                Ok(_) => {}
                Err(error) => candidate.failure = Some(format!("{error:#}")),
            }
            std::thread::sleep(candidate.pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn candidates_alternate_and_failed_ones_are_dropped() {
        let order = RefCell::new(String::new());
        let take_sample = |name: char| {
            order.borrow_mut().push(name);
            Ok(Duration::ZERO)
        };
        let mut candidates = [
            Candidate::new("a", || take_sample('a')),
            Candidate::new("failing", || anyhow::bail!("not installed")),
            Candidate::new("b", || take_sample('b')),
        ];
        sample_in_turns(&mut candidates, 3);
        assert_eq!(*order.borrow(), "abababab");
        assert_eq!(candidates.each_ref().map(|candidate| candidate.times.len()), [3, 0, 3]);
        assert_eq!(candidates[1].failure.as_deref(), Some("not installed"));
    }
}
