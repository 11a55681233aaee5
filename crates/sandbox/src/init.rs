//! PID 1 of a sandbox: builds the view and the walls, starts the command, reaps, passes signals on.
//!
//! It runs in the child of the clone, with a copy of the starter's memory, and never returns. Once the
//! walls stand it has no more rights than the guest, but the guest cannot look into it (it is not
//! dumpable) nor kill it (it is PID 1). When it exits, the kernel kills every process of the sandbox.
//!
//! Its host is whoever holds the other end of its orders; its life hangs on another channel, held by the process
//! that made it, which can also give it a new host.

mod command;
mod decisions;
mod files;
mod host;
mod kernel;
mod processes;
mod settle;
mod signals;
mod sockets;
mod watches;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::error::StepError;
use crate::frame::{MAIN, Report};
use crate::sys::{SignalSet, exit_now};
use crate::view::Entry;
use crate::volume::CheckedVolume;
use crate::walls::Walls;
use ringfence_core::{Network, Workspace};

pub(crate) use command::{PreparedCommand, Wiring};
use decisions::Decisions;
use host::Heard;
pub(crate) use host::Host;
use processes::{Processes, Reaped};

/// All that the init needs, prepared by the host. What is skipped cannot be written down.
#[derive(Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) entries: Vec<Entry>,
    #[serde(skip)]
    pub(crate) volumes: Vec<CheckedVolume>,
    /// The host opens the volumes and sends them; otherwise the init opens them itself.
    pub(crate) host_opens_volumes: bool,
    pub(crate) workspace: Workspace,
    pub(crate) uid: u32,
    pub(crate) network: Network,
    pub(crate) walls: Walls,
    /// What the sandbox is made for, if it is made for one command.
    #[serde(skip)]
    pub(crate) main: Option<(PreparedCommand, Wiring)>,
}

/// Lives the whole life of the sandbox.
pub(crate) fn run(plan: Plan, mut host: Host) -> ! {
    let code = match live(plan, &mut host) {
        Ok(()) => 0,
        Err(StepError { step, errno }) => {
            // If even this cannot be said, the closed channel says it.
            host.report(&Report::Failed { step, errno: errno.raw_os_error() }, None);
            1
        }
    };
    exit_now(code)
}

fn live(mut plan: Plan, host: &mut Host) -> Result<(), StepError> {
    settle::close_foreign_descriptors(&plan, host)?;
    let (listener, pending_calls) = settle::settle(&plan, host.orders()?)?;
    let mut decisions = Decisions::new(pending_calls, plan.walls.limits.memory_bytes);
    // Mounted by now; the init has no more use for a descriptor of the host's.
    plan.volumes.clear();
    let children = SignalSet::new(&[Signal::CHILD])
        .block_to_signalfd()
        .map_err(|errno| StepError { step: "watch for children".into(), errno })?;
    let mut processes = Processes::default();
    // Somebody may wait for what it starts; whoever hears that the walls stand has things to do, on the same processor
    // maybe.
    let first = host.heard_already().and_then(|(order, passed)| processes::begin(order, passed));
    host.report(&Report::Ready, listener.as_ref());
    // The host has it now; when the host lets go of it, connections must fail, not wait.
    drop(listener);
    if let Some((process, begun)) = first {
        processes.note(host, process, begun);
    }
    if let Some((command, wiring)) = plan.main.take() {
        command.enter_workdir()?;
        if !processes.start(host, MAIN, &command, wiring) {
            return Ok(());
        }
    }
    serve(host, &children, &mut decisions, &mut processes)
}

/// Reaps children, carries out orders and decides about pending calls, until the main process or the last host is gone.
fn serve(
    host: &mut Host,
    children: &OwnedFd,
    decisions: &mut Decisions,
    processes: &mut Processes,
) -> Result<(), StepError> {
    loop {
        let reaped = processes.reap(host);
        if reaped == Reaped::Main {
            return Ok(());
        }
        decisions.decide_waiting();
        let at_once = (reaped == Reaped::Some).then(Timespec::default);
        let timeout = at_once.or_else(|| decisions.check_again_after());
        let mut watched = vec![PollFd::new(children, PollFlags::IN), PollFd::new(decisions, PollFlags::IN)];
        watched.extend(host.channels().map(|channel| PollFd::new(channel, PollFlags::IN)));
        if let Err(errno) = poll(&mut watched, timeout.as_ref())
            && errno != Errno::INTR
        {
            return Err(StepError { step: "wait for events".into(), errno });
        }
        let ready: Vec<bool> = watched.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[1] {
            decisions.decide();
        }
        match host.hear(&ready[2..]) {
            Heard::Order(order, passed) => processes.obey(host, order, passed),
            Heard::Nothing => {}
            // Without a host there is nobody to live for.
            Heard::End => return Ok(()),
        }
        let mut signals = [0; 1024];
        let _ = rustix::io::read(children, &mut signals);
    }
}

impl Plan {
    /// The descriptors that must stay open, in rising order.
    fn descriptors(&self, host: &Host) -> Vec<u32> {
        let mut kept: Vec<_> = host.channels().map(|channel| channel.as_fd().as_raw_fd()).collect();
        kept.extend(self.main.iter().flat_map(|(_, wiring)| wiring.descriptors()));
        kept.extend(self.volumes.iter().map(|volume| volume.descriptor().as_raw_fd()));
        let mut kept: Vec<u32> = kept.into_iter().map(i32::cast_unsigned).collect();
        kept.sort_unstable();
        kept
    }
}
