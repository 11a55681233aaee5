//! PID 1 of a sandbox: builds the view and the walls, starts the command, reaps, passes signals on.
//!
//! It runs in the child of the clone, with a copy of the starter's memory, and never returns. Once the
//! walls stand it has no more rights than the guest, but the guest cannot look into it (it is not
//! dumpable) nor kill it (it is PID 1). When it exits, the kernel kills every process of the sandbox.

mod command;
mod files;
mod processes;
mod settle;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::error::StepError;
use crate::frame::{Channel, MAIN, Order, Report};
use crate::spec::{Network, Workspace};
use crate::sys::{SignalSet, exit_now};
use crate::view::Entry;
use crate::volume::CheckedVolume;
use crate::walls::Walls;

pub(crate) use command::{PreparedCommand, Wiring};
use processes::{Main, Processes};

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
    /// What the sandbox is made for, if it is made for one command.
    pub(crate) main: Option<(PreparedCommand, Wiring)>,
}

/// Lives the whole life of the sandbox.
pub(crate) fn run(plan: Plan, channel: &Channel) -> ! {
    let code = match live(plan, channel) {
        Ok(()) => 0,
        Err(StepError { step, errno }) => {
            // If even this cannot be said, the closed channel says it.
            let _ = channel.send(&Report::Failed { step, errno: errno.raw_os_error() }, &[]);
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
    let mut processes = Processes::default();
    if let Some((command, wiring)) = plan.main.take() {
        command.enter_workdir()?;
        if !processes.start(channel, MAIN, &command, wiring)? {
            return Ok(());
        }
    }
    serve(channel, &children, &mut processes)
}

/// Reaps and obeys until the main process ends, or the host goes away.
fn serve(channel: &Channel, children: &OwnedFd, processes: &mut Processes) -> Result<(), StepError> {
    loop {
        if processes.reap(channel)? == Main::Ended {
            return Ok(());
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
                Ok(Some((order, passed))) => processes.obey(channel, order, passed)?,
                // Without a host there is nobody to live for.
                Ok(None) | Err(_) => return Ok(()),
            }
        }
        let mut signals = [0; 1024];
        let _ = rustix::io::read(children, &mut signals);
    }
}

fn report(channel: &Channel, report: &Report, passed: Option<&OwnedFd>) -> Result<(), StepError> {
    let passed: Vec<_> = passed.map(AsFd::as_fd).into_iter().collect();
    let sent = channel.send(report, &passed);
    sent.map_err(|errno| StepError { step: "report to the host".into(), errno })
}

impl Plan {
    /// The descriptors that must stay open, in rising order.
    fn descriptors(&self, channel: &Channel) -> Vec<u32> {
        let mut kept = vec![channel.as_fd().as_raw_fd()];
        kept.extend(self.main.iter().flat_map(|(_, wiring)| wiring.descriptors()));
        kept.extend(self.volumes.iter().map(CheckedVolume::descriptor));
        let mut kept: Vec<u32> = kept.into_iter().map(i32::cast_unsigned).collect();
        kept.sort_unstable();
        kept
    }
}
