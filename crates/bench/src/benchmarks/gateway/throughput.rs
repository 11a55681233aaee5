//! Calls per second of concurrent clients.

use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Result, anyhow};

use super::echo_client::EchoClient;

/// Runs; in each, every client makes all its calls.
const RUNS: usize = 3;

/// Returns the rate of each run. Each client has its own connection and calls without a pause.
pub(super) fn measure(clients: usize, calls: usize, connect: impl Fn() -> Result<EchoClient>) -> Result<Vec<f64>> {
    let mut clients = (0..clients).map(|_| connect()).collect::<Result<Vec<_>>>()?;
    let calls_per_client = calls.div_ceil(4);
    (0..RUNS).map(|_| run(&mut clients, calls_per_client)).collect()
}

fn run(clients: &mut [EchoClient], calls_per_client: usize) -> Result<f64> {
    let barrier = Barrier::new(clients.len() + 1);
    let total = u32::try_from(clients.len() * calls_per_client)?;
    let make_calls = |client: &mut EchoClient| {
        barrier.wait();
        (0..calls_per_client).try_for_each(|_| client.call().map(drop))
    };
    let time = std::thread::scope(|scope| {
        let threads: Vec<_> = clients.iter_mut().map(|client| scope.spawn(|| make_calls(client))).collect();
        barrier.wait();
        let start = Instant::now();
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        anyhow::Ok(start.elapsed())
    })?;
    Ok(f64::from(total) / time.as_secs_f64())
}
