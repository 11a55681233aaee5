//! Connects the streams, the signals and the timeout of this process with the command in a sandbox.
//!
//! The host's descriptors are never passed into the sandbox: the sandbox has its own pipes or terminal, and bytes are
//! copied between the two.

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ringfence_core::Spec;
use ringfence_sandbox::{Event, Sandbox, SignalSet, SignalTarget, Stdio, Streams, VolumeWatch};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use super::egress::{self, Egress};
use super::outcome::Outcome;
use super::pump::{self, Pump};
use super::terminal::RawTerminal;
use crate::failure::Failure;
use crate::output::notice;

/// The number of the process for which the sandbox is made.
const COMMAND: u32 = 0;

/// Time between SIGTERM at the timeout and the kill of the sandbox.
const TERMINATION_GRACE: Duration = Duration::from_secs(1);

/// Minimum interval between two checks of the limits that no cgroup enforces.
const LIMIT_CHECK_INTERVAL: Duration = Duration::from_millis(25);

/// Pause after a check of the limits, as a multiple of the check's duration. A check takes longer the more processes the
/// guest has; the pause bounds the CPU time that the guest can cause here.
const LIMIT_CHECK_PAUSE_FACTOR: u32 = 20;

/// Signals that are passed on to the command.
const RELAYED: [Signal; 7] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2, Signal::WINCH];

/// Runs a sandbox until its command has ended, and returns the exit code.
pub(super) fn run(spec: &Spec, stdio: Stdio, egress: Egress, timeout: Option<Duration>) -> Result<ExitCode, Failure> {
    let signals = SignalSet::new(&RELAYED)
        .block_to_signalfd()
        .map_err(|errno| Failure::new("cannot watch for signals").caused_by(&errno))?;
    let deadline = timeout.map(|timeout| (Instant::now() + timeout, timeout));
    let is_strict = spec.strict_volumes.is_some();
    let watch_before_start = if is_strict { None } else { VolumeWatch::start(&spec.volumes) };
    let (mut sandbox, mut streams) = ringfence_sandbox::start(spec, stdio)?;
    // The start creates the placeholders of strict volumes, which are not to be reported as changes.
    let volume_watch = if is_strict { VolumeWatch::start(&spec.volumes) } else { watch_before_start };
    let egress = streams.egress.take().map(|sockets| egress::serve(sockets, egress)).transpose()?;
    let mut attached = Attached::new(streams)?;
    sandbox.remove_stale_cgroups();
    let outcome = wait_for_end(&mut sandbox, &signals, &mut attached, deadline)?;
    let (memory_kills, changes) = sandbox.finish(volume_watch);
    drop(egress);
    attached.drain(&signals)?;
    for change in changes {
        notice(&format!("warning: {change}"));
    }
    Ok(outcome.report(memory_kills, spec))
}

/// The pumps between the streams of this process and those of the sandbox, and the terminal in raw mode, if there is one.
struct Attached {
    pumps: Vec<Pump>,
    /// End of a pipe, which becomes readable (as closed) once all output has been written.
    drained: OwnedFd,
    terminal: Option<RawTerminal>,
}

impl Attached {
    fn new(mut streams: Streams) -> Result<Self, Failure> {
        let (drained, busy) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|errno| Failure::new("cannot create a pipe").caused_by(&errno))?;
        let (pumps, terminal) = match (streams.take_pipes(), streams.terminal.take()) {
            (Some([stdin, stdout, stderr]), _) => {
                let output = Pump::new(stdout, pump::stdout()?, Some(pump::duplicate(&busy)?));
                let mut pumps = vec![output, Pump::new(stderr, pump::stderr()?, Some(busy))];
                // An input that is always at its end needs no thread: the closed pipe has the same effect.
                if !pump::stdin_is_null() {
                    pumps.push(Pump::new(pump::stdin()?, stdin, None));
                }
                (pumps, None)
            }
            (None, Some(controlling)) => {
                let terminal = RawTerminal::enter(pump::duplicate(&controlling)?)?;
                let input = Pump::new(pump::stdin()?, pump::duplicate(&controlling)?, None);
                (vec![input, Pump::new(controlling, pump::stdout()?, Some(busy))], Some(terminal))
            }
            (None, None) => return Err(Failure::new("the sandbox has no streams")),
        };
        Ok(Self { pumps, drained, terminal })
    }

    /// Waits until all output is written. A signal ends the wait, since the reader of the output may have stopped.
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

/// Relays signals and checks the limits until the command ends, exceeds a limit or reaches the timeout.
fn wait_for_end(
    sandbox: &mut Sandbox,
    signals: &OwnedFd,
    attached: &mut Attached,
    deadline: Option<(Instant, Duration)>,
) -> Result<Outcome, Failure> {
    let mut kill_at: Option<(Instant, Duration)> = None;
    let mut check_at = sandbox.needs_limit_checks().then(Instant::now);
    loop {
        let now = Instant::now();
        if check_at.is_some_and(|at| now >= at) {
            if let Some(breach) = sandbox.check_limits() {
                return Ok(Outcome::LimitExceeded(breach));
            }
            check_at = Some(Instant::now() + LIMIT_CHECK_INTERVAL.max(now.elapsed() * LIMIT_CHECK_PAUSE_FACTOR));
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
            kill_at = Some((now + TERMINATION_GRACE, timeout));
        }
        let alarm = kill_at.or(deadline).map(|(at, _)| at);
        let wake = check_at.into_iter().chain(alarm).min().map(|at| at.saturating_duration_since(now));
        let timeout = wake.and_then(|wake| Timespec::try_from(wake).ok());
        let ready: Vec<bool> = {
            let mut watched = vec![PollFd::new(&*sandbox, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
            let sources = attached.pumps.iter().filter_map(Pump::source);
            watched.extend(sources.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)));
            let _ = poll(&mut watched, timeout.as_ref());
            watched.iter().map(|fd| !fd.revents().is_empty()).collect()
        };
        let (has_event, has_signal) = (ready[0], ready[1]);
        let idle = attached.pumps.iter_mut().filter(|pump| pump.source().is_some());
        for (pump, _) in idle.zip(&ready[2..]).filter(|(_, ready)| **ready) {
            pump.start()?;
        }
        if has_event {
            let ended = match sandbox.control().next_event() {
                Event::Ended { status, .. } => Outcome::Ended(status),
                Event::Started { .. } | Event::StartFailed { .. } | Event::Lost => Outcome::Lost,
            };
            return Ok(kill_at.map_or(ended, |(_, timeout)| Outcome::TimedOut(timeout)));
        }
        if has_signal {
            relay_signals(sandbox, signals, attached);
        }
    }
}

fn relay_signals(sandbox: &Sandbox, signals: &OwnedFd, attached: &Attached) {
    for signal in read_signals(signals) {
        if signal == Signal::WINCH
            && let Some(terminal) = &attached.terminal
        {
            terminal.resize();
            continue;
        }
        // A terminal sends these signals to its whole foreground process group.
        let is_from_terminal = [Signal::INT, Signal::QUIT, Signal::HUP, Signal::WINCH].contains(&signal);
        let target = if is_from_terminal { SignalTarget::ProcessGroup } else { SignalTarget::Process };
        let _ = sandbox.control().signal(COMMAND, signal, target);
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
