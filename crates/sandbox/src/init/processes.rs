//! The processes that the init has started for the host, indexed by the numbers that the host has assigned to them.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, wait};

use super::channels::InitChannels;
use super::command::{self, PreparedCommand, ProcessStreams};
use super::{files, interpreter, signals};
use crate::protocol::{InitReport, InitRequest, MAIN_PROCESS, SignalTarget};

/// Maximum number of children that [`Processes::reap`] reaps before pending requests are handled.
const MAX_REAPED: usize = 64;

/// The result of [`Processes::reap`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reaped {
    All,
    /// There may be more children to reap.
    Some,
    /// The main process has ended.
    Main,
}

/// A started process, with its terminal if it has one.
pub(super) type StartResult = Result<(Pid, Option<OwnedFd>), Errno>;

#[derive(Default)]
pub(super) struct Processes(BTreeMap<u32, Pid>);

impl Processes {
    /// Starts a process and reports the result. Returns whether it was started.
    pub(super) fn start(
        &mut self,
        channels: &mut InitChannels,
        process: u32,
        command: &PreparedCommand,
        streams: ProcessStreams,
    ) -> bool {
        let result = command::start(command, streams);
        self.record_start(channels, process, result)
    }

    /// Records and reports the start of a process. Returns whether it was started.
    pub(super) fn record_start(&mut self, channels: &mut InitChannels, process: u32, result: StartResult) -> bool {
        match result {
            Ok((pid, terminal)) => {
                self.0.insert(process, pid);
                channels.report(&InitReport::Started { process }, terminal.as_slice());
                true
            }
            Err(errno) => {
                channels.report(&InitReport::CommandFailed { process, errno: errno.raw_os_error() }, &[]);
                false
            }
        }
    }

    /// Handles a request of the host. The init reports an error for an invalid request, or ignores it, and never exits
    /// because of one.
    pub(super) fn handle_request(&mut self, channels: &mut InitChannels, request: InitRequest, passed: Vec<OwnedFd>) {
        match request {
            InitRequest::Start { .. } | InitRequest::Fork { .. } => {
                if let Some((process, result)) = start_requested(request, passed) {
                    self.record_start(channels, process, result);
                }
            }
            InitRequest::Signal { process, number, target } => {
                if let Some(pid) = self.0.get(&process) {
                    signals::send(*pid, number, target);
                }
            }
            InitRequest::ReplaceOwner { keep } => {
                if let Some(owner) = passed.into_iter().next() {
                    self.kill_all_except(keep);
                    channels.replace_owner(owner);
                }
            }
            InitRequest::File { path, action } => files::handle(&path, action, passed),
            // `serve` handles `Listen`; the others are invalid after the setup.
            InitRequest::Listen { .. }
            | InitRequest::JoinCgroups
            | InitRequest::Volume
            | InitRequest::Isolate { .. } => {}
        }
    }

    /// Kills all processes except `keep`. Their exits are not reported, because the next owner does not know them.
    fn kill_all_except(&mut self, keep: Option<u32>) {
        self.0.retain(|process, pid| {
            let is_kept = Some(*process) == keep;
            if !is_kept {
                signals::send(*pid, Signal::KILL.as_raw(), SignalTarget::ProcessTree);
            }
            is_kept
        });
    }

    /// Reaps children that have ended, and reports those that the host has numbered. Stops after [`MAX_REAPED`],
    /// because orphaned processes may end faster than they are reaped, which would delay requests without a limit.
    pub(super) fn reap(&mut self, channels: &mut InitChannels) -> Reaped {
        for _ in 0..MAX_REAPED {
            let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) else { return Reaped::All };
            let Some(process) = self.0.iter().find_map(|(process, found)| (*found == pid).then_some(*process)) else {
                continue;
            };
            self.0.remove(&process);
            channels.report(&end_report(process, status), &[]);
            if process == MAIN_PROCESS {
                return Reaped::Main;
            }
        }
        Reaped::Some
    }
}

/// Starts the process of a `Start` or `Fork` request; returns `None` for other requests. The caller must pass the
/// result to [`Processes::record_start`].
pub(super) fn start_requested(request: InitRequest, passed: Vec<OwnedFd>) -> Option<(u32, StartResult)> {
    match request {
        InitRequest::Start { process, command, environment } => {
            let prepared = PreparedCommand::new(&command, &environment).map_err(|_| Errno::INVAL);
            let ready = prepared.and_then(|ready| ready.enter_workdir().map(|()| ready).map_err(|error| error.errno));
            Some((process, ready.and_then(|ready| command::start(&ready, ProcessStreams::Descriptors(passed)))))
        }
        InitRequest::Fork { process, workdir, environment } => {
            Some((process, interpreter::fork(&workdir, &environment, &passed).map(|pid| (pid, None))))
        }
        _ => None,
    }
}

fn end_report(process: u32, status: WaitStatus) -> InitReport {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => InitReport::Exited { process, code },
        (None, signal) => InitReport::Killed { process, signal: signal.unwrap_or(Signal::KILL.as_raw()) },
    }
}
