//! PID 1 of a sandbox: isolates itself, starts processes, reaps them, and opens files for the host.
//!
//! It runs in the child of the clone, with a copy of its parent's memory, and never returns. Once it is isolated it has
//! no more rights than the guest, but the guest can neither inspect it (it is not dumpable) nor kill it (it is PID 1).
//! When it exits, the kernel kills every process of the sandbox.
//!
//! It has two channels. The owner sends requests and receives reports. The creator, the process that started the
//! sandbox, can replace the owner; the sandbox ends when the creator's channel closes.

mod channels;
mod command;
mod egress_ports;
mod files;
mod interpreter;
mod processes;
mod setup;
mod signals;
mod syscall_supervisor;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::error::SetupError;
use crate::mounts::RootEntry;
use crate::protocol::{InitReport, InitRequest, MAIN_PROCESS};
use crate::restrictions::Restrictions;
use crate::sys::{SignalSet, exit_now};
use crate::volumes::CheckedVolume;
use ringfence_core::{Network, Workspace, WorkspaceEntry};

pub(crate) use channels::InitChannels;
use channels::Received;
pub(crate) use command::{PreparedCommand, ProcessStreams};
use egress_ports::EgressPorts;
pub(crate) use interpreter::{EnterInterpreter, register_interpreter};
use processes::{Processes, Reaped};
use syscall_supervisor::SyscallSupervisor;

/// The parameters of an init, prepared by the host. Skipped fields hold descriptors, or do not occur with a zygote.
#[derive(Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) entries: Vec<RootEntry>,
    #[serde(skip)]
    pub(crate) volumes: Vec<CheckedVolume>,
    /// The host opens the volumes and sends them; otherwise the init opens them.
    pub(crate) host_opens_volumes: bool,
    pub(crate) workspace: Workspace,
    pub(crate) workspace_entries: Vec<WorkspaceEntry>,
    pub(crate) uid: u32,
    pub(crate) network: Network,
    #[serde(rename = "walls")]
    pub(crate) restrictions: Restrictions,
    /// The command of the spec, with which the sandbox ends.
    #[serde(skip)]
    pub(crate) main: Option<(PreparedCommand, ProcessStreams)>,
}

/// Runs the sandbox until its end, and then exits.
pub(crate) fn run(plan: Plan, mut channels: InitChannels) -> ! {
    let code = match isolate_and_serve(plan, &mut channels) {
        Ok(()) => 0,
        Err(SetupError { step, errno }) => {
            // If this report cannot be sent, the host sees that the channel closes.
            channels.report(&InitReport::Failed { step, errno: errno.raw_os_error() }, &[]);
            1
        }
    };
    exit_now(code)
}

fn isolate_and_serve(mut plan: Plan, channels: &mut InitChannels) -> Result<(), SetupError> {
    setup::close_inherited_descriptors(&plan, channels)?;
    let notifications = setup::isolate(&plan, channels)?;
    let mut supervisor = SyscallSupervisor::new(notifications, plan.restrictions.limits.memory_bytes);
    // The volumes are mounted, so the host's descriptors are not needed any more.
    plan.volumes.clear();
    let children = SignalSet::new(&[Signal::CHILD])
        .block_to_signalfd()
        .map_err(|errno| SetupError { step: "watch for child processes".into(), errno })?;
    let mut processes = Processes::default();
    // The initial process starts before the report: a client may wait for it, and the report wakes up the host, which
    // may then compete for the same CPU.
    let initial = channels.pending_request().and_then(|(request, passed)| processes::start_requested(request, passed));
    channels.report(&InitReport::Ready, &[]);
    if let Some((process, result)) = initial {
        processes.record_start(channels, process, result);
    }
    if let Some((command, streams)) = plan.main.take() {
        command.enter_workdir()?;
        if !processes.start(channels, MAIN_PROCESS, &command, streams) {
            return Ok(());
        }
    }
    let mut egress_ports = EgressPorts::new(&plan.network);
    serve(channels, &children, &mut supervisor, &mut processes, &mut egress_ports)
}

/// Reaps children, handles requests and supervises system calls, until the main process ends or the creator closes its
/// channel.
fn serve(
    channels: &mut InitChannels,
    children: &OwnedFd,
    supervisor: &mut SyscallSupervisor,
    processes: &mut Processes,
    egress_ports: &mut EgressPorts,
) -> Result<(), SetupError> {
    loop {
        let reaped = processes.reap(channels);
        if reaped == Reaped::Main {
            return Ok(());
        }
        supervisor.retry_waiting();
        let immediately = (reaped == Reaped::Some).then(Timespec::default);
        let timeout = immediately.or_else(|| supervisor.retry_interval());
        let mut watched = vec![PollFd::new(children, PollFlags::IN), PollFd::new(supervisor, PollFlags::IN)];
        watched.extend(channels.open().map(|channel| PollFd::new(channel, PollFlags::IN)));
        if let Err(errno) = poll(&mut watched, timeout.as_ref())
            && errno != Errno::INTR
        {
            return Err(SetupError { step: "wait for events".into(), errno });
        }
        let ready: Vec<bool> = watched.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[1] {
            supervisor.handle_call();
        }
        match channels.receive(&ready[2..]) {
            Received::Request(InitRequest::Listen { port }, passed) => egress_ports.handle(port, passed),
            Received::Request(request, passed) => processes.handle_request(channels, request, passed),
            Received::Nothing => {}
            Received::End => return Ok(()),
        }
        let mut signals = [0; 1024];
        let _ = rustix::io::read(children, &mut signals);
    }
}

impl Plan {
    /// The descriptors that must stay open, in rising order.
    fn descriptors(&self, channels: &InitChannels) -> Vec<u32> {
        let mut descriptors: Vec<_> = channels.open().map(|channel| channel.as_fd().as_raw_fd()).collect();
        descriptors.extend(self.main.iter().flat_map(|(_, streams)| streams.descriptors()));
        descriptors.extend(self.volumes.iter().map(|volume| volume.descriptor().as_raw_fd()));
        let mut descriptors: Vec<u32> = descriptors.into_iter().map(i32::cast_unsigned).collect();
        descriptors.sort_unstable();
        descriptors
    }
}
