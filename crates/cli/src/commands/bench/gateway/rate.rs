//! How many calls are answered in a second, when many clients call at once.

use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Result, anyhow};

use super::talk::Talk;

/// How often; each time all clients make all their calls.
const RUNS: usize = 3;

/// The rates of some runs. Each client has a connection of its own and calls without a pause.
pub(super) fn measure(clients: usize, calls: usize, open: impl Fn() -> Result<Talk>) -> Result<Vec<f64>> {
    let mut talks = (0..clients).map(|_| open()).collect::<Result<Vec<_>>>()?;
    let calls_each = calls.div_ceil(4);
    (0..RUNS).map(|_| run(&mut talks, calls_each)).collect()
}

fn run(talks: &mut [Talk], calls: usize) -> Result<f64> {
    let barrier = Barrier::new(talks.len() + 1);
    let total = u32::try_from(talks.len() * calls)?;
    let call_all = |talk: &mut Talk| {
        barrier.wait();
        (0..calls).try_for_each(|_| talk.call().map(drop))
    };
    let time = std::thread::scope(|scope| {
        let threads: Vec<_> = talks.iter_mut().map(|talk| scope.spawn(|| call_all(talk))).collect();
        barrier.wait();
        let start = Instant::now();
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        anyhow::Ok(start.elapsed())
    })?;
    Ok(f64::from(total) / time.as_secs_f64())
}
