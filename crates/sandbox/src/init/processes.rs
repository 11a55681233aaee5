//! The processes that the init has started for the host, by the host's own numbers.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, wait};

use super::command::{self, PreparedCommand, Wiring};
use super::host::Host;
use super::{files, kernel, signals};
use crate::control::SignalTarget;
use crate::frame::{MAIN, Order, Report};

/// Children that are collected before orders are heard.
const MOST_AT_ONCE: usize = 64;

/// How far the children that have ended are collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reaped {
    All,
    /// There may be more.
    Some,
    /// The process that the sandbox is made for has ended.
    Main,
}

/// A process that has begun, with its terminal where it has one.
pub(super) type Begun = Result<(Pid, Option<OwnedFd>), Errno>;

#[derive(Default)]
pub(super) struct Processes(BTreeMap<u32, Pid>);

impl Processes {
    /// Starts a process and reports it; `false` if it could not be started.
    pub(super) fn start(&mut self, host: &mut Host, process: u32, command: &PreparedCommand, wiring: Wiring) -> bool {
        let started = command::start(command, wiring);
        self.note(host, process, started)
    }

    /// Reports what was started; `false` if it could not be.
    pub(super) fn note(&mut self, host: &mut Host, process: u32, started: Begun) -> bool {
        match started {
            Ok((pid, terminal)) => {
                self.0.insert(process, pid);
                host.report(&Report::Started { process }, terminal.as_ref());
                true
            }
            Err(errno) => {
                host.report(&Report::CommandFailed { process, errno: errno.raw_os_error() }, None);
                false
            }
        }
    }

    /// Carries out what the host asks. What makes no sense is answered or passed over, never fatal.
    pub(super) fn obey(&mut self, host: &mut Host, order: Order, passed: Vec<OwnedFd>) {
        match order {
            Order::Start { .. } | Order::Fork { .. } => {
                if let Some((process, begun)) = begin(order, passed) {
                    self.note(host, process, begun);
                }
            }
            Order::Signal { process, number, target } => {
                if let Some(pid) = self.0.get(&process) {
                    signals::pass_on(*pid, number, target);
                }
            }
            Order::Renew { keep } => {
                if let Some(orders) = passed.into_iter().next() {
                    self.end_all_but(keep);
                    host.renew(orders);
                }
            }
            Order::File { path, action } => files::answer(&path, action, passed),
            Order::Entrances | Order::Volume | Order::Go { .. } => {}
        }
    }

    /// The ends of these are reported to nobody: the next host has never heard of them.
    fn end_all_but(&mut self, keep: Option<u32>) {
        self.0.retain(|process, pid| {
            let kept = Some(*process) == keep;
            if !kept {
                signals::pass_on(*pid, Signal::KILL.as_raw(), SignalTarget::ProcessTree);
            }
            kept
        });
    }

    /// Collects children that have ended, and reports those that the host has a number for. Not without end: orphans may
    /// come faster than they are collected, and orders are heard in between.
    pub(super) fn reap(&mut self, host: &mut Host) -> Reaped {
        for _ in 0..MOST_AT_ONCE {
            let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) else { return Reaped::All };
            let Some(process) = self.0.iter().find_map(|(process, found)| (*found == pid).then_some(*process)) else {
                continue;
            };
            self.0.remove(&process);
            host.report(&describe(process, status), None);
            if process == MAIN {
                return Reaped::Main;
            }
        }
        Reaped::Some
    }
}

/// Starts what an order names, if it is one for that. It is to be noted, whatever came of it.
pub(super) fn begin(order: Order, passed: Vec<OwnedFd>) -> Option<(u32, Begun)> {
    match order {
        Order::Start { process, command, environment } => {
            let prepared = PreparedCommand::new(&command, &environment).map_err(|_| Errno::INVAL);
            let ready = prepared.and_then(|ready| ready.enter_workdir().map(|()| ready).map_err(|error| error.errno));
            Some((process, ready.and_then(|ready| command::start(&ready, Wiring::Descriptors(passed)))))
        }
        Order::Fork { process, workdir, environment } => {
            Some((process, kernel::fork(&workdir, &environment, &passed).map(|pid| (pid, None))))
        }
        _ => None,
    }
}

fn describe(process: u32, status: WaitStatus) -> Report {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Report::Exited { process, code },
        (None, signal) => Report::Killed { process, signal: signal.unwrap_or(Signal::KILL.as_raw()) },
    }
}
