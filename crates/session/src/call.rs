//! One call in a session: runs code or a command to its end, its time limit, or its caller's end.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ringfence_backend::{Event, ExitStatus, SignalTarget};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use tokio::net::unix::pipe::Receiver;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::capture::Capture;
use super::host_calls::CallNote;
use super::kernel::Fate;
use super::{Output, Status};
use ringfence_backend::{Instance, Process};
use ringfence_guest::{CellError, DisplayItem};

/// An interrupt can come at a moment when it is lost, so it is repeated before the kill; but not at once, since what it
/// has begun may take a while. After each there is so much time.
const AFTER_INTERRUPTS: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_millis(750), Duration::from_millis(750), Duration::from_millis(500)];

/// How long the end of a process that was killed is waited for.
pub(crate) const LAST_WORD: Duration = Duration::from_secs(2);

pub(crate) const SANDBOX_KILLED: &str = "the sandbox was killed; variables and files of the session are lost";

/// What came of a call, before it is known to whom it belongs.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: Status,
    pub(crate) exit_code: Option<i32>,
    pub(crate) stdout: Output,
    pub(crate) stderr: Output,
    pub(crate) result: Option<String>,
    pub(crate) error: Option<CellError>,
    pub(crate) is_cut: bool,
    pub(crate) display: Vec<DisplayItem>,
    pub(crate) notices: Vec<String>,
    pub(crate) open_calls: Vec<Arc<CallNote>>,
}

impl Outcome {
    pub(crate) fn new(status: Status) -> Self {
        Self {
            status,
            exit_code: None,
            stdout: Output::default(),
            stderr: Output::default(),
            result: None,
            error: None,
            is_cut: false,
            display: Vec::new(),
            notices: Vec::new(),
            open_calls: Vec::new(),
        }
    }

    /// Of what did not run, or not to its end.
    pub(crate) fn not_run(status: Status, why: String) -> Self {
        Self { notices: vec![why], ..Self::new(status) }
    }
}

/// The two streams of a process while a call runs.
#[derive(Default)]
pub(crate) struct Captured {
    stdout: Capture,
    stderr: Capture,
}

impl Captured {
    /// Takes what is there; waits until something is, or for ever once both streams have ended.
    pub(crate) async fn take(&mut self, process: &mut Process) {
        tokio::select! {
            () = take_from(&process.stdout, &mut self.stdout) => {}
            () = take_from(&process.stderr, &mut self.stderr) => {}
        }
    }

    /// Takes what is left without waiting.
    pub(crate) fn drain(&mut self, process: &mut Process) {
        // Asked of the kernel itself: the runtime may not have heard yet that there is something to read.
        let mut watched = [&process.stdout, &process.stderr].map(|stream| PollFd::new(stream, PollFlags::IN));
        if poll(&mut watched, Some(&Timespec::default())) == Ok(0) {
            return;
        }
        drain_from(&process.stdout, &mut self.stdout);
        drain_from(&process.stderr, &mut self.stderr);
    }

    pub(crate) fn finish(self) -> (Output, Output) {
        (self.stdout.finish(), self.stderr.finish())
    }
}

const READ_AT_ONCE: usize = 64 << 10;

async fn take_from(stream: &Receiver, capture: &mut Capture) {
    loop {
        if stream.readable().await.is_err() {
            std::future::pending::<()>().await;
        }
        match read_some(stream, capture) {
            // The end comes again and again; there is nothing more to wait for.
            Ok(0) => std::future::pending().await,
            Ok(_) => return,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => std::future::pending().await,
        }
    }
}

fn drain_from(stream: &Receiver, capture: &mut Capture) {
    /// A guest that prints without end must not hold its own answer up.
    const MOST_READS: usize = 1024;
    let mut buffer = vec![0; READ_AT_ONCE];
    for _ in 0..MOST_READS {
        match rustix::io::read(stream, &mut buffer) {
            Ok(length @ 1..) => capture.take(&buffer[..length]),
            Err(rustix::io::Errno::INTR) => {}
            Ok(0) | Err(_) => return,
        }
    }
}

/// On the heap, so that the tasks which wait here stay small.
fn read_some(stream: &Receiver, capture: &mut Capture) -> std::io::Result<usize> {
    let mut buffer = Vec::with_capacity(READ_AT_ONCE);
    let length = stream.try_read_buf(&mut buffer)?;
    capture.take(&buffer);
    Ok(length)
}

/// Why a call is being ended before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    Timeout,
    Cancelled,
}

impl Reason {
    pub(crate) fn status(self) -> Status {
        match self {
            Self::Timeout => Status::TimedOut,
            Self::Cancelled => Status::Cancelled,
        }
    }
}

/// The steps from a call's time limit to its end: interrupts first, then the kill.
pub(crate) struct Patience {
    /// One timer for the whole call: a waiting call is looked at again and again.
    timer: Pin<Box<Sleep>>,
    cancel: CancellationToken,
    interrupts: usize,
    pub(crate) reason: Option<Reason>,
}

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Impatience {
    /// After so many others.
    Interrupt(usize),
    Kill,
}

impl Patience {
    pub(crate) fn new(timeout: Duration, cancel: CancellationToken) -> Self {
        Self { timer: Box::pin(sleep(timeout)), cancel, interrupts: 0, reason: None }
    }

    /// Whether there was nothing left but the kill.
    pub(crate) fn is_lost(&self) -> bool {
        self.interrupts > AFTER_INTERRUPTS.len()
    }

    /// Waits until something is to be done. Cancel-safe.
    pub(crate) async fn lose(&mut self) -> Impatience {
        if self.reason.is_some() {
            self.timer.as_mut().await;
        } else {
            self.reason = Some(tokio::select! {
                () = self.timer.as_mut() => Reason::Timeout,
                () = self.cancel.cancelled() => Reason::Cancelled,
            });
        }
        let before = self.interrupts;
        self.interrupts += 1;
        let Some(pause) = AFTER_INTERRUPTS.get(before) else {
            self.timer.as_mut().reset(Instant::now() + LAST_WORD);
            return Impatience::Kill;
        };
        self.timer.as_mut().reset(Instant::now() + *pause);
        Impatience::Interrupt(before)
    }
}

/// Runs a shell line to its end. What is told of other processes meanwhile goes to `others`.
pub(crate) async fn run_command(
    guest: &mut Instance,
    line: &str,
    mut patience: Patience,
    others: &mut Vec<Event>,
) -> (Outcome, Fate) {
    let argv = ["bash", "-c", line].map(Into::into).to_vec();
    let mut captured = Captured::default();
    let not_started = |why: String| (Outcome::not_run(Status::Error, why), Fate::Lives);
    let mut process = match guest.spawn(argv, None) {
        Ok(process) => process,
        Err(error) => return not_started(format!("the command could not be started: {error}")),
    };
    let mut killed: Option<Instant> = None;
    let end = loop {
        tokio::select! {
            biased;
            event = guest.event() => match event {
                Event::Ended { process: number, status } if number == process.number => break Some(status),
                Event::StartFailed { process: number, errno } if number == process.number => {
                    return not_started(refusal(errno));
                }
                Event::Lost => break None,
                other => others.push(other),
            },
            impatience = patience.lose(), if killed.is_none() => match impatience {
                // At once to all that it has started: what it waits for may have left its group, and outlive it.
                Impatience::Interrupt(_) => guest.signal(process.number, Signal::TERM, SignalTarget::ProcessTree),
                Impatience::Kill => {
                    guest.signal(process.number, Signal::KILL, SignalTarget::ProcessTree);
                    killed = Some(Instant::now() + LAST_WORD);
                }
            },
            // A guest can keep even its init from doing what it is told; or the kernel is long in ending the process.
            () = sleep_until(killed.unwrap_or_else(Instant::now)), if killed.is_some() => {
                if guest.kill_if_stuck().await {
                    break None;
                }
                break Some(ExitStatus::Killed(Signal::KILL.as_raw()));
            }
            () = captured.take(&mut process) => {}
        }
    };
    captured.drain(&mut process);
    let (stdout, stderr) = captured.finish();
    let Some(end) = end else {
        return (
            Outcome { stdout, stderr, ..Outcome::not_run(Status::Killed, SANDBOX_KILLED.into()) },
            Fate::SandboxLost,
        );
    };
    guest.leave(process).await;
    let exit_code = code_of(end);
    let status = patience.reason.map_or(Status::of_exit(Some(exit_code)), Reason::status);
    (Outcome { exit_code: Some(exit_code), stdout, stderr, ..Outcome::new(status) }, Fate::Lives)
}

/// Why a shell line was not started, for somebody who cannot look.
fn refusal(errno: rustix::io::Errno) -> String {
    let remedy = match errno {
        rustix::io::Errno::AGAIN => "; the session has as many processes as it may have: end some of them first",
        rustix::io::Errno::NOENT => "; the template has no bash",
        _ => "",
    };
    format!("the command could not be started: {errno}{remedy}")
}

/// As a shell would have it.
pub(crate) fn code_of(end: ExitStatus) -> i32 {
    match end {
        ExitStatus::Exited(code) => code,
        ExitStatus::Killed(signal) => 128 + signal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn interrupts_come_first_and_the_kill_last() {
        let mut patience = Patience::new(Duration::from_secs(30), CancellationToken::new());
        let start = Instant::now();
        for before in 0..AFTER_INTERRUPTS.len() {
            assert_eq!(patience.lose().await, Impatience::Interrupt(before));
        }
        assert_eq!(patience.lose().await, Impatience::Kill);
        assert_eq!((start.elapsed(), patience.reason), (Duration::from_secs(33), Some(Reason::Timeout)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_goes_away_is_not_waited_for() {
        let cancel = CancellationToken::new();
        let mut patience = Patience::new(Duration::from_secs(30), cancel.clone());
        cancel.cancel();
        let start = Instant::now();
        assert_eq!(patience.lose().await, Impatience::Interrupt(0));
        assert_eq!((start.elapsed(), patience.reason), (Duration::ZERO, Some(Reason::Cancelled)));
    }
}
