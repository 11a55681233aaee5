//! PID 1 of a sandbox: builds the view and the walls, starts the command, reaps, passes signals on.
//!
//! It runs in the child of the clone, with a copy of the starter's memory, and never returns. Once the
//! walls stand it has no more rights than the guest, but the guest cannot look into it (it is not
//! dumpable) nor kill it (it is PID 1). When it exits, the kernel kills every process of the sandbox.

mod command;
mod settle;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, wait};

use crate::error::StepError;
use crate::frame::{Channel, Order, Report};
use crate::spec::{Network, Workspace};
use crate::sys::{SignalSet, exit_now};
use crate::view::Entry;
use crate::volume::CheckedVolume;
use crate::walls::Walls;

pub(crate) use command::{PreparedCommand, Wiring};

/// All that the init needs, prepared by the host.
pub(crate) struct Plan {
    pub(crate) entries: Vec<Entry>,
    pub(crate) volumes: Vec<CheckedVolume>,
    /// The host opens the volumes and sends them; otherwise the init opens them itself.
    pub(crate) host_opens_volumes: bool,
    pub(crate) workspace: Workspace,
    pub(crate) uid: u32,
    pub(crate) network: Network,
    pub(crate) walls: Walls,
    pub(crate) command: PreparedCommand,
    pub(crate) wiring: Wiring,
}

/// Lives the whole life of the sandbox.
pub(crate) fn run(plan: Plan, channel: &Channel) -> ! {
    let code = match live(plan, channel) {
        Ok(()) => 0,
        Err(StepError { step, errno }) => {
            // If even this cannot be said, the closed channel says it.
            let _ = channel.send(&Report::Failed { step, errno: errno.raw_os_error() }, None);
            1
        }
    };
    exit_now(code)
}

fn live(mut plan: Plan, channel: &Channel) -> Result<(), StepError> {
    settle::close_foreign_descriptors(&plan, channel)?;
    let listener = settle::settle(&plan, channel)?;
    // Mounted by now; the init has no more use for a descriptor of the host's.
    plan.volumes.clear();
    report(channel, &Report::Ready, listener.as_ref())?;
    // The host has it now; when the host lets go of it, connections must fail, not wait.
    drop(listener);

    let children = SignalSet::new(&[Signal::CHILD])
        .block_and_watch()
        .map_err(|errno| StepError { step: "watch for children".into(), errno })?;
    plan.command.enter_workdir()?;
    let main = match command::start(&plan.command, plan.wiring) {
        Ok((main, terminal)) => {
            report(channel, &Report::Started, terminal.as_ref())?;
            main
        }
        Err(errno) => return report(channel, &Report::CommandFailed { errno: errno.raw_os_error() }, None),
    };
    serve(channel, &children, main)
}

/// Reaps and relays until the command ends, or the host goes away.
fn serve(channel: &Channel, children: &OwnedFd, main: Pid) -> Result<(), StepError> {
    loop {
        if let Some(end) = reap(main) {
            return report(channel, &end, None);
        }
        let mut watched = [PollFd::new(channel, PollFlags::IN), PollFd::new(children, PollFlags::IN)];
        if let Err(errno) = poll(&mut watched, None)
            && errno != Errno::INTR
        {
            return Err(StepError { step: "wait for events".into(), errno });
        }
        let [orders, _] = watched.map(|fd| !fd.revents().is_empty());
        if orders {
            match channel.receive::<Order>() {
                Ok(Some((Order::Signal { number, group }, _))) => pass_on(main, number, group),
                Ok(Some(_)) => {}
                // Without a host there is nobody to live for.
                Ok(None) | Err(_) => return Ok(()),
            }
        }
        let mut signals = [0; 1024];
        let _ = rustix::io::read(children, &mut signals);
    }
}

/// Collects every child that has ended; gives the end of the command, once it has come.
fn reap(main: Pid) -> Option<Report> {
    let mut end = None;
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        if pid == main {
            end = Some(describe(status));
        }
    }
    end
}

fn describe(status: WaitStatus) -> Report {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Report::Exited { code },
        (None, signal) => Report::Killed { signal: signal.unwrap_or(Signal::KILL.as_raw()) },
    }
}

fn pass_on(main: Pid, number: i32, group: bool) {
    let Some(signal) = Signal::from_named_raw(number) else { return };
    // It may have ended meanwhile; its end is on its way.
    let _ = if group {
        rustix::process::kill_process_group(main, signal)
    } else {
        rustix::process::kill_process(main, signal)
    };
}

fn report(channel: &Channel, report: &Report, passed: Option<&OwnedFd>) -> Result<(), StepError> {
    let sent = channel.send(report, passed.map(AsFd::as_fd));
    sent.map_err(|errno| StepError { step: "report to the host".into(), errno })
}

impl Plan {
    /// The descriptors that must stay open, in rising order.
    fn descriptors(&self, channel: &Channel) -> Vec<u32> {
        let mut kept = vec![channel.as_fd().as_raw_fd()];
        kept.extend(self.wiring.descriptors());
        kept.extend(self.volumes.iter().map(CheckedVolume::descriptor));
        let mut kept: Vec<u32> = kept.into_iter().map(i32::cast_unsigned).collect();
        kept.sort_unstable();
        kept
    }
}
