//! Many sessions at once, each asked for over a connection of its own.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};

use super::effort::Effort;
use super::host::Host;
use super::peers::{time_to_print, words};
use super::report::Section;
use super::rows::{Bound, Figure, Row};
use super::server::Server;
use super::sessions::first_print;

const PRINT: &str = "print(1)";

/// What some starts at once came to, over all bursts.
#[derive(Default)]
struct Outcome {
    rates: Vec<f64>,
    times: Vec<Duration>,
    failures: Vec<String>,
}

pub(super) fn measure(effort: &Effort, host: &Host) -> Result<Section> {
    let python = host.python.as_ref().context("there is no python3")?;
    let command = words(python, &["-I", "-c", PRINT]);
    let server = Server::start(&format!("[sessions]\nmax_sessions = {}\n", effort.burst + 64))?;
    server.warm_up("python", PRINT)?;
    let (mut ours, mut bare) = (Outcome::default(), Outcome::default());
    for _ in 0..effort.bursts {
        let clients = (0..effort.burst).map(|_| server.connect()).collect::<Result<Vec<_>>>()?;
        let ids = ours.add(clients.into_iter().map(|mut client| move || first_print(&mut client, "python", PRINT)));
        let mut client = server.connect()?;
        ids.iter().try_for_each(|id| client.stop(id))?;
        bare.add((0..effort.burst).map(|_| || Ok(((), time_to_print(&command)?))));
        // For the pool to be filled again, and what has ended to be gone.
        std::thread::sleep(effort.long_pause * 3);
    }
    let count = effort.burst;
    let bare_rate = Row::of_few(format!("{count} × python3 -I at once"), "/s", bare.rates);
    let rate = Row::of_few(format!("ringfence, {count} sessions at once"), "/s", ours.rates)
        .against(Some(&bare_rate))
        .target(Figure::Value, Bound::AtLeast, 200.0);
    let bare_times = Row::of_times("each first print, python3 -I", &bare.times);
    let times = Row::of_times("each first print, ringfence", &ours.times).against(Some(&bare_times));
    let failed = Row::single("failed, of all bursts", "", count_of(&ours.failures));
    let failed = failed.target(Figure::Value, Bound::AtMost, 0.0);
    let rows = vec![rate, bare_rate, times, bare_times, failed];
    Ok(Section { rows, left_out: ours.failures.into_iter().take(1).collect() })
}

impl Outcome {
    /// Runs all of them at once, and gives what they made.
    fn add<T: Send, J: FnOnce() -> Result<(T, Duration)> + Send>(&mut self, jobs: impl Iterator<Item = J>) -> Vec<T> {
        let jobs: Vec<J> = jobs.collect();
        let barrier = Barrier::new(jobs.len() + 1);
        let (start, results) = std::thread::scope(|scope| {
            let run = |job: J| {
                scope.spawn(|| {
                    barrier.wait();
                    (Instant::now(), job())
                })
            };
            let threads: Vec<_> = jobs.into_iter().map(run).collect();
            barrier.wait();
            let start = Instant::now();
            (start, threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>())
        });
        let mut made = Vec::new();
        let mut last = start;
        for result in results {
            match result.unwrap_or_else(|_| (start, Err(anyhow!("a thread panicked")))) {
                (begun, Ok((thing, time))) => {
                    made.push(thing);
                    self.times.push(time);
                    last = last.max(begun + time);
                }
                (_, Err(error)) => self.failures.push(format!("{error:#}")),
            }
        }
        let seconds = last.duration_since(start).as_secs_f64();
        self.rates.push(if seconds > 0.0 { count_of(&made) / seconds } else { 0.0 });
        made
    }
}

fn count_of<T>(things: &[T]) -> f64 {
    u32::try_from(things.len()).map_or(f64::INFINITY, f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_fail_are_counted_and_the_rest_goes_on() {
        let mut outcome = Outcome::default();
        let job =
            |number: u32| move || if number == 3 { Err(anyhow!("no room")) } else { Ok((number, Duration::ZERO)) };
        assert_eq!(outcome.add((0..5).map(job)), [0, 1, 2, 4]);
        assert_eq!((outcome.failures, outcome.times.len()), (vec!["no room".to_owned()], 4));
    }
}
