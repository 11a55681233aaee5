//! Many sessions created at the same time, each over its own connection.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::Setup;
use super::first_print::first_print;
use crate::peers::{command_line, time_to_first_output};
use crate::report::{Bound, Figure, Row, Section};

const PRINT: &str = "print(1)";

/// The results of all bursts of one kind.
#[derive(Default)]
struct Bursts {
    /// Starts per second, one value for each burst.
    rates: Vec<f64>,
    times: Vec<Duration>,
    failures: Vec<String>,
}

pub(super) fn measure(setup: &Setup) -> Result<Section> {
    let size = setup.workload.burst_sessions;
    let command = command_line(setup.python()?, &["-I", "-c", PRINT]);
    let server = setup.start_server(&format!("[sessions]\nmax_sessions = {}\n", size + 64))?;
    server.warm_up("python", PRINT)?;
    let (mut sessions, mut bare) = (Bursts::default(), Bursts::default());
    for _ in 0..setup.workload.bursts {
        let clients = (0..size).map(|_| server.connect()).collect::<Result<Vec<_>>>()?;
        let ids = sessions.run(clients.into_iter().map(|mut client| move || first_print(&mut client, "python", PRINT)));
        let mut client = server.connect()?;
        ids.iter().try_for_each(|id| client.stop_session(id))?;
        bare.run((0..size).map(|_| || Ok(((), time_to_first_output(&command)?))));
        // Time to refill the pool and to remove the stopped sandboxes.
        std::thread::sleep(setup.workload.long_pause * 3);
    }
    let bare_rate = Row::of_few_samples(format!("{size} × python3 -I at once"), "/s", bare.rates);
    let rate = Row::of_few_samples(format!("ringfence, {size} sessions at once"), "/s", sessions.rates)
        .compared_with(Some(&bare_rate))
        .target(Figure::Value, Bound::AtLeast, 200.0);
    let bare_times = Row::of_times("time to first print, python3 -I", &bare.times);
    let times = Row::of_times("time to first print, ringfence", &sessions.times).compared_with(Some(&bare_times));
    let failed = Row::single("failed sessions, all bursts", "", count(&sessions.failures));
    let failed = failed.target(Figure::Value, Bound::AtMost, 0.0);
    let rows = vec![rate, bare_rate, times, bare_times, failed];
    Ok(Section { rows, not_measured: sessions.failures.into_iter().take(1).collect() })
}

impl Bursts {
    /// Runs all jobs at the same time. Returns the results of those that did not fail.
    fn run<T: Send, J: FnOnce() -> Result<(T, Duration)> + Send>(&mut self, jobs: impl Iterator<Item = J>) -> Vec<T> {
        let jobs: Vec<J> = jobs.collect();
        let barrier = Barrier::new(jobs.len() + 1);
        let (start, results) = std::thread::scope(|scope| {
            let spawn = |job: J| {
                scope.spawn(|| {
                    barrier.wait();
                    (Instant::now(), job())
                })
            };
            let threads: Vec<_> = jobs.into_iter().map(spawn).collect();
            barrier.wait();
            let start = Instant::now();
            (start, threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>())
        });
        let mut values = Vec::new();
        let mut end = start;
        for result in results {
            match result.unwrap_or_else(|_| (start, Err(anyhow!("a thread panicked")))) {
                (job_start, Ok((value, time))) => {
                    values.push(value);
                    self.times.push(time);
                    end = end.max(job_start + time);
                }
                (_, Err(error)) => self.failures.push(format!("{error:#}")),
            }
        }
        let seconds = end.duration_since(start).as_secs_f64();
        self.rates.push(if seconds > 0.0 { count(&values) / seconds } else { 0.0 });
        values
    }
}

fn count<T>(items: &[T]) -> f64 {
    u32::try_from(items.len()).map_or(f64::INFINITY, f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_jobs_are_counted_and_the_others_finish() {
        let mut bursts = Bursts::default();
        let job = |number: u32| move || if number == 3 { Err(anyhow!("limit")) } else { Ok((number, Duration::ZERO)) };
        assert_eq!(bursts.run((0..5).map(job)), [0, 1, 2, 4]);
        assert_eq!((bursts.failures, bursts.times.len()), (vec!["limit".to_owned()], 4));
    }
}
