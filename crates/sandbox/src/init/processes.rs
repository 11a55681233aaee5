//! The processes that the init has started for the host, by the host's own numbers.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, wait};

use super::command::{self, PreparedCommand, Wiring};
use super::{files, report};
use crate::error::StepError;
use crate::frame::{Channel, MAIN, Order, Report};

/// Whether the process that the sandbox is made for has ended, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Main {
    Ended,
    NotEnded,
}

#[derive(Default)]
pub(super) struct Processes(BTreeMap<u32, Pid>);

impl Processes {
    /// Starts a process and reports it; `false` if it could not be started.
    pub(super) fn start(
        &mut self,
        channel: &Channel,
        process: u32,
        command: &PreparedCommand,
        wiring: Wiring,
    ) -> Result<bool, StepError> {
        match command::start(command, wiring) {
            Ok((pid, terminal)) => {
                self.0.insert(process, pid);
                report(channel, &Report::Started { process }, terminal.as_ref())?;
                Ok(true)
            }
            Err(errno) => {
                report(channel, &Report::CommandFailed { process, errno: errno.raw_os_error() }, None)?;
                Ok(false)
            }
        }
    }

    /// Carries out what the host asks. What makes no sense is answered or passed over, never fatal.
    pub(super) fn obey(&mut self, channel: &Channel, order: Order, passed: Vec<OwnedFd>) -> Result<(), StepError> {
        match order {
            Order::Start { process, command, environment } => {
                let refused = |errno: Errno| Report::CommandFailed { process, errno: errno.raw_os_error() };
                let Ok(prepared) = PreparedCommand::new(&command, &environment) else {
                    return report(channel, &refused(Errno::INVAL), None);
                };
                if let Err(error) = prepared.enter_workdir() {
                    return report(channel, &refused(error.errno), None);
                }
                self.start(channel, process, &prepared, Wiring::Descriptors(passed)).map(drop)
            }
            Order::Signal { process, number, group } => {
                if let Some(pid) = self.0.get(&process) {
                    pass_on(*pid, number, group);
                }
                Ok(())
            }
            Order::File { path, action } => {
                files::answer(&path, action, passed);
                Ok(())
            }
            Order::Entrance | Order::Volume | Order::Go { .. } => Ok(()),
        }
    }

    /// Collects every child that has ended, and reports those that the host has a number for.
    pub(super) fn reap(&mut self, channel: &Channel) -> Result<Main, StepError> {
        let mut main = Main::NotEnded;
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let Some(process) = self.0.iter().find_map(|(process, found)| (*found == pid).then_some(*process)) else {
                continue;
            };
            self.0.remove(&process);
            report(channel, &describe(process, status), None)?;
            if process == MAIN {
                main = Main::Ended;
            }
        }
        Ok(main)
    }
}

fn describe(process: u32, status: WaitStatus) -> Report {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Report::Exited { process, code },
        (None, signal) => Report::Killed { process, signal: signal.unwrap_or(Signal::KILL.as_raw()) },
    }
}

fn pass_on(pid: Pid, number: i32, group: bool) {
    let Some(signal) = Signal::from_named_raw(number) else { return };
    // It may have ended meanwhile; its end is on its way.
    let _ = if group {
        rustix::process::kill_process_group(pid, signal)
    } else {
        rustix::process::kill_process(pid, signal)
    };
}
