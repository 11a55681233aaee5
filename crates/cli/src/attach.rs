//! Stands between a sandbox's command and whoever started us: streams, signals, the time limit, the end.
//!
//! The host's own descriptors never go inside: bytes are moved from and to pipes (or a terminal) of the
//! sandbox's own.

mod egress;
mod pump;
mod terminal;

pub(crate) use egress::{Egress, Logged};
use pump::Pump;

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ringfence_core::{Spec, bytes};
use ringfence_sandbox::{
    Event, ExitStatus, LimitBreach, Sandbox, SignalSet, SignalTarget, Stdio, Streams, VolumeWatch,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use crate::failure::{Failure, SIGNAL_BASE, TIMED_OUT, notice};

/// The number of the process that the sandbox is made for.
const COMMAND: u32 = 0;

/// Between a polite request to end and the kill.
const GRACE: Duration = Duration::from_secs(1);

/// How often the memory of a sandbox without a memory cgroup is summed up, at most.
const WATCH_INTERVAL: Duration = Duration::from_millis(25);

/// How many times as long as a look takes it rests before the next: the guest decides how many processes there
/// are to look at, and must not decide how much CPU time that costs.
const WATCH_REST: u32 = 20;

/// Signals that are passed on.
const RELAYED: [Signal; 7] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2, Signal::WINCH];

/// Why the sandbox ended.
enum Outcome {
    Ended(ExitStatus),
    /// The whole sandbox was killed from outside.
    Lost,
    TimedOut(Duration),
    Broke(LimitBreach),
}

/// Runs the sandbox to its end, and gives the exit code to end with.
pub(crate) fn run(spec: &Spec, stdio: Stdio, egress: Egress, timeout: Option<Duration>) -> Result<ExitCode, Failure> {
    let signals = SignalSet::new(&RELAYED)
        .block_to_signalfd()
        .map_err(|errno| Failure::new("cannot watch for signals").because(&errno))?;
    let deadline = timeout.map(|timeout| (Instant::now() + timeout, timeout));
    let is_strict = spec.strict_volumes.is_some();
    let before = if is_strict { None } else { VolumeWatch::start(&spec.volumes) };
    let (mut sandbox, mut streams) = ringfence_sandbox::start(spec, stdio)?;
    // Placeholders of strict volumes exist from here on, and are no change.
    let names = if is_strict { VolumeWatch::start(&spec.volumes) } else { before };
    let proxy = streams.listener.take().map(|listener| egress::serve(listener, egress)).transpose()?;
    let mut attached = Attached::new(streams)?;
    sandbox.remove_stale_cgroups();
    let outcome = attend(&mut sandbox, &signals, &mut attached, deadline)?;
    let (memory_kills, changes) = sandbox.finish(names);
    drop(proxy);
    attached.drain(&signals)?;
    for change in changes {
        notice(&format!("warning: {change}"));
    }
    Ok(conclude(&outcome, memory_kills, spec))
}

/// The directions in which bytes move, and the terminal while it is borrowed.
struct Attached {
    pumps: Vec<Pump>,
    /// Readable (as closed) once all output has been written.
    drained: OwnedFd,
    terminal: Option<terminal::Borrowed>,
}

impl Attached {
    fn new(mut streams: Streams) -> Result<Self, Failure> {
        let (drained, busy) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|errno| Failure::new("cannot watch the output").because(&errno))?;
        let (pumps, terminal) = match (streams.take_pipes(), streams.terminal.take()) {
            (Some([stdin, stdout, stderr]), _) => {
                let output = Pump::new(stdout, pump::stdout()?, Some(pump::duplicate(&busy)?));
                let mut pumps = vec![output, Pump::new(stderr, pump::stderr()?, Some(busy))];
                // An input that is always at its end needs no thread: the closed pipe says the same.
                if !pump::stdin_is_null() {
                    pumps.push(Pump::new(pump::stdin()?, stdin, None));
                }
                (pumps, None)
            }
            (None, Some(controlling)) => {
                let terminal = terminal::Borrowed::new(pump::duplicate(&controlling)?)?;
                let input = Pump::new(pump::stdin()?, pump::duplicate(&controlling)?, None);
                (vec![input, Pump::new(controlling, pump::stdout()?, Some(busy))], Some(terminal))
            }
            (None, None) => return Err(Failure::new("the sandbox came without streams")),
        };
        Ok(Self { pumps, drained, terminal })
    }

    /// Waits until all output is out; a signal to end does not wait for a reader that has stopped.
    fn drain(mut self, signals: &OwnedFd) -> Result<(), Failure> {
        self.pumps.iter_mut().try_for_each(Pump::finish)?;
        loop {
            let mut watched = [PollFd::new(&self.drained, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
            if poll(&mut watched, None).is_err() {
                continue;
            }
            let [drained, signalled] = watched.map(|fd| !fd.revents().is_empty());
            if drained || (signalled && read_signals(signals).iter().any(|signal| *signal != Signal::WINCH)) {
                return Ok(());
            }
        }
    }
}

/// Relays signals and watches the limits until the command ends, one way or another.
fn attend(
    sandbox: &mut Sandbox,
    signals: &OwnedFd,
    attached: &mut Attached,
    deadline: Option<(Instant, Duration)>,
) -> Result<Outcome, Failure> {
    let mut kill_at: Option<(Instant, Duration)> = None;
    let mut watch_at = sandbox.needs_limit_checks().then(Instant::now);
    loop {
        let now = Instant::now();
        if watch_at.is_some_and(|at| now >= at) {
            if let Some(breach) = sandbox.check_limits() {
                return Ok(Outcome::Broke(breach));
            }
            watch_at = Some(Instant::now() + WATCH_INTERVAL.max(now.elapsed() * WATCH_REST));
        }
        if let Some((at, timeout)) = kill_at
            && now >= at
        {
            return Ok(Outcome::TimedOut(timeout));
        }
        if let Some((at, timeout)) = deadline
            && now >= at
            && kill_at.is_none()
        {
            let _ = sandbox.control().signal(COMMAND, Signal::TERM, SignalTarget::ProcessGroup);
            kill_at = Some((now + GRACE, timeout));
        }
        let alarm = kill_at.or(deadline).map(|(at, _)| at);
        let wake = watch_at.into_iter().chain(alarm).min().map(|at| at.saturating_duration_since(now));
        let timeout = wake.and_then(|wake| Timespec::try_from(wake).ok());
        let ready: Vec<bool> = {
            let mut watched = vec![PollFd::new(&*sandbox, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
            let sources = attached.pumps.iter().filter_map(Pump::source);
            watched.extend(sources.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)));
            let _ = poll(&mut watched, timeout.as_ref());
            watched.iter().map(|fd| !fd.revents().is_empty()).collect()
        };
        let (reported, signalled) = (ready[0], ready[1]);
        let waiting = attached.pumps.iter_mut().filter(|pump| pump.source().is_some());
        for (pump, _) in waiting.zip(&ready[2..]).filter(|(_, ready)| **ready) {
            pump.start()?;
        }
        if reported {
            let ended = match sandbox.control().next_event() {
                Event::Ended { status: end, .. } => Outcome::Ended(end),
                Event::Started { .. } | Event::StartFailed { .. } | Event::Lost => Outcome::Lost,
            };
            return Ok(kill_at.map_or(ended, |(_, timeout)| Outcome::TimedOut(timeout)));
        }
        if signalled {
            relay(sandbox, signals, attached);
        }
    }
}

fn relay(sandbox: &Sandbox, signals: &OwnedFd, attached: &Attached) {
    for signal in read_signals(signals) {
        if signal == Signal::WINCH
            && let Some(terminal) = &attached.terminal
        {
            terminal.resize();
            continue;
        }
        // What a terminal sends, it sends to the whole foreground.
        let group = [Signal::INT, Signal::QUIT, Signal::HUP, Signal::WINCH].contains(&signal);
        let _ = sandbox.control().signal(
            COMMAND,
            signal,
            if group { SignalTarget::ProcessGroup } else { SignalTarget::Process },
        );
    }
}

fn read_signals(signals: &OwnedFd) -> Vec<Signal> {
    /// The size of a `signalfd_siginfo`, whose first four bytes are the signal's number.
    const RECORD: usize = 128;
    let mut buffer = [0; RECORD * 16];
    let length = rustix::io::read(signals.as_fd(), &mut buffer).unwrap_or(0);
    let records = buffer[..length].as_chunks::<RECORD>().0;
    let number = |record: &[u8; RECORD]| i32::from_ne_bytes([record[0], record[1], record[2], record[3]]);
    records.iter().filter_map(|record| Signal::from_named_raw(number(record))).collect()
}

/// Says what a person could not know otherwise, and chooses the exit code.
fn conclude(outcome: &Outcome, memory_kills: u64, spec: &Spec) -> ExitCode {
    let limit = bytes::format(spec.limits.memory_bytes);
    if memory_kills > 0 {
        let processes = if memory_kills == 1 { "a process".into() } else { format!("{memory_kills} processes") };
        notice(&format!(
            "{processes} of the sandbox went over its memory limit of {limit} and was killed (raise it with --memory)"
        ));
    }
    let code = match outcome {
        Outcome::Ended(ExitStatus::Exited(code)) => u8::try_from(*code).unwrap_or(u8::MAX),
        Outcome::Ended(ExitStatus::Killed(signal)) => signal_code(*signal),
        Outcome::Lost => {
            notice("the sandbox was killed from outside");
            signal_code(Signal::KILL.as_raw())
        }
        Outcome::TimedOut(timeout) => {
            notice(&format!("the command was ended after its time limit of {} s", timeout.as_secs_f64()));
            TIMED_OUT
        }
        Outcome::Broke(breach) => {
            notice(&match breach {
                LimitBreach::Memory { used, .. } => format!(
                    "the sandbox went over its memory limit of {limit} (it held {}) and was killed (raise it with --memory)",
                    bytes::format(*used)
                ),
                LimitBreach::Sockets { count, limit } => format!(
                    "the sandbox was killed: {count} sockets, whose buffers could hold more than its memory limit (at most {limit}; raise it with --memory)"
                ),
                LimitBreach::Unobservable => "the sandbox was killed: its processes can no longer be seen in /proc, so its memory limit could not be kept".into(),
            });
            signal_code(Signal::KILL.as_raw())
        }
    };
    ExitCode::from(code)
}

fn signal_code(signal: i32) -> u8 {
    SIGNAL_BASE.saturating_add(u8::try_from(signal).unwrap_or(0))
}
