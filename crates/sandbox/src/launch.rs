//! Starts a sandbox: checks that the host has every protection, clones the init, maps its ids, and waits until the
//! command runs.

mod requirements;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::Winsize;
use serde::{Deserialize, Serialize};

use crate::cgroup::{Cgroup, CgroupParent};
use crate::enforcement::Enforcement;
use crate::error::{Error, errno_of};
use crate::init::{self, InitChannels, Plan, PreparedCommand, ProcessStreams};
use crate::namespaces::{IdMapping, Setgroups, clone_init};
use crate::protocol::{Channel, InitReport, InitRequest, errno_from_wire};
use crate::restrictions::Restrictions;
use crate::sandbox::{InitProcess, Sandbox, Streams};
use crate::sys::{Fork, Parent};
use crate::volumes::check_volumes;
use crate::zygote::Zygote;
use crate::{egress, host, mounts, pipe};
use ringfence_core::{Access, Command, Network, Spec};

/// Maximum time of a start, far more than the slowest host needs.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The standard streams of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdio {
    /// Three pipes. The caller gets the other ends.
    Pipes,
    /// A terminal of this size inside the sandbox. The caller gets the controlling side.
    Terminal(Winsize),
}

/// A process that a sandbox starts as soon as it is isolated: forked from the sandbox's warm interpreter if it has one,
/// and otherwise executed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitialProcess {
    pub process: u32,
    pub command: Command,
    pub environment: BTreeMap<String, String>,
}

impl InitialProcess {
    /// The number of its descriptors, from 0 on. The last is its control channel.
    pub const DESCRIPTORS: usize = 4;

    fn request(&self, source: &InitSource<'_>) -> InitRequest {
        let Self { process, command, environment } = self.clone();
        match source {
            InitSource::Zygote(_) => InitRequest::Fork { process, workdir: command.workdir, environment },
            InitSource::Clone => InitRequest::Start { process, command, environment },
        }
    }
}

/// The process from which an init is forked.
pub(crate) enum InitSource<'a> {
    /// This process.
    Clone,
    /// A zygote, with its warm interpreter. Only for specs without a command.
    Zygote(&'a mut Zygote),
}

/// Starts the sandbox of `spec`, and its command if it has one.
///
/// The calling process must have one thread: the init continues with a copy of its memory.
pub fn start(spec: &Spec, stdio: Stdio) -> Result<(Sandbox, Streams), Error> {
    begin(spec, stdio, &mut InitSource::Clone, None)?.finish(spec)
}

/// A sandbox whose init is isolating itself.
pub(crate) struct StartingSandbox {
    sandbox: Sandbox,
    streams: Streams,
}

impl StartingSandbox {
    /// Waits until the sandbox is isolated and its command runs.
    pub(crate) fn finish(self, spec: &Spec) -> Result<(Sandbox, Streams), Error> {
        let Self { mut sandbox, mut streams } = self;
        wait_for_start(&mut sandbox, &mut streams, spec)?;
        Ok((sandbox, streams))
    }
}

/// Starts the init, and sends everything that it needs to isolate itself. `initial` is a process that it then starts,
/// with its descriptors.
pub(crate) fn begin(
    spec: &Spec,
    stdio: Stdio,
    source: &mut InitSource<'_>,
    initial: Option<(&InitialProcess, &[OwnedFd])>,
) -> Result<StartingSandbox, Error> {
    spec.validate()?;
    initial.map_or(Ok(()), |(initial, _)| initial.command.validate())?;
    host::require_single_thread()?;
    let cgroup_parent = requirements::find_cgroup_parent(spec)?;
    let enforcement = Enforcement::in_parent(cgroup_parent.as_ref());
    let id_mapping = requirements::choose_id_mapping(spec)?;
    let landlock_abi = requirements::find_landlock(spec)?;
    let prepare = |command: &Command| PreparedCommand::new(command, &spec.environment);
    let command = spec.command.as_ref().map(prepare).transpose()?;
    let entries = mounts::list_root_entries(spec)
        .map_err(|error| Error::Setup { step: "list the entries of the root".into(), source: errno_of(&error) })?;
    let (volumes, placeholders) = check_volumes(spec)?;
    let (main, streams) = match command {
        Some(command) => {
            connect(stdio).map(|(process_streams, streams)| (Some((command, process_streams)), streams))?
        }
        None => (None, Streams::default()),
    };
    let (owner_channel, init_owner) = Channel::pair().map_err(Error::setup("create the control channel"))?;
    let (creator_channel, init_creator) = Channel::pair().map_err(Error::setup("create the creator's channel"))?;

    let host_opens_volumes = matches!(id_mapping, IdMapping::Dedicated { .. });
    let writable = spec.volumes.iter().filter(|volume| volume.access == Access::ReadWrite);
    let plan = Plan {
        entries,
        volumes,
        host_opens_volumes,
        workspace: spec.workspace,
        workspace_entries: spec.workspace_entries.clone(),
        uid: spec.uid,
        network: spec.network.clone(),
        restrictions: Restrictions {
            limits: spec.limits,
            enforcement,
            landlock_abi,
            is_uid_shared: id_mapping.is_shared(),
            writable: writable.map(|volume| volume.guest.clone()).collect(),
        },
        main,
    };
    let make_cgroup = |parent: CgroupParent| Cgroup::create(&parent, &spec.limits);
    // On v2 the init is cloned into its cgroup. On v1 it joins the cgroup later, so that is made while it runs.
    let (v2_cgroup, v1_parent) = match cgroup_parent {
        Some(parent @ CgroupParent::V2 { .. }) => (Some(make_cgroup(parent)?), None),
        parent => (None, parent),
    };
    let clone_target = v2_cgroup.as_ref().and_then(Cgroup::clone_target);
    let process = match source {
        InitSource::Zygote(zygote) => zygote.fork_init(&plan, &init_owner, &init_creator, clone_target)?,
        InitSource::Clone => match clone_init(clone_target, Parent::This).map_err(host::explain_clone)? {
            Fork::Child => init::run(plan, InitChannels::new(init_owner, init_creator)),
            Fork::Parent { pid, pidfd } => InitProcess { pid, pidfd },
        },
    };
    drop((init_owner, init_creator));
    // From here on, dropping the sandbox in an early return ends it.
    let mut sandbox = Sandbox::new(process, owner_channel, creator_channel, v2_cgroup, placeholders, spec, enforcement);
    let volumes = plan.volumes;
    drop(plan.main);

    let setgroups = id_mapping.apply(sandbox.pid(), spec.uid)?;
    if let Some(parent) = v1_parent {
        let task_files = sandbox.add_cgroup(make_cgroup(parent)?)?;
        let task_files: Vec<_> = task_files.iter().map(AsFd::as_fd).collect();
        sandbox.control().send_request(&InitRequest::JoinCgroups, &task_files)?;
    }
    if host_opens_volumes {
        let ids = id_mapping.host_ids(sandbox.pid());
        for volume in &volumes {
            sandbox.control().send_request(&InitRequest::Volume, &[volume.open_mapped(ids)?.as_fd()])?;
        }
    }
    let may_drop_groups = setgroups == Setgroups::Enabled;
    sandbox.control().send_request(&InitRequest::Isolate { may_drop_groups }, &[])?;
    if let Some((initial, descriptors)) = initial {
        // Stays in the channel until the init is isolated.
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        sandbox.control().send_request(&initial.request(source), &descriptors)?;
    }
    Ok(StartingSandbox { sandbox, streams })
}

/// Creates the streams of the command: the process's ends, and the host's.
fn connect(stdio: Stdio) -> Result<(ProcessStreams, Streams), Error> {
    if let Stdio::Terminal(size) = stdio {
        return Ok((ProcessStreams::Terminal(size), Streams::default()));
    }
    let (theirs, ours) = pipe::standard_streams().map_err(Error::setup("create the standard streams"))?;
    let [stdin, stdout, stderr] = ours.map(Some);
    Ok((ProcessStreams::Descriptors(theirs.into()), Streams { stdin, stdout, stderr, ..Streams::default() }))
}

const INVALID_EGRESS: Error = Error::Protocol("the init of the sandbox sent wrong sockets for egress");

/// Waits for the reports that the sandbox is isolated and that its command runs.
fn wait_for_start(sandbox: &mut Sandbox, streams: &mut Streams, spec: &Spec) -> Result<(), Error> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        wait_readable(sandbox, deadline)?;
        let (report, passed) = sandbox.control().next_report()?;
        match report {
            InitReport::Egress if streams.egress.is_none() => {
                let ports = spec.network.egress_ports().unwrap_or_default();
                streams.egress = egress::check_sockets(passed, &ports);
            }
            InitReport::Egress => return Err(INVALID_EGRESS),
            InitReport::Ready => {
                if streams.egress.is_some() != (spec.network != Network::None) {
                    return Err(INVALID_EGRESS);
                }
                if spec.command.is_none() {
                    return Ok(());
                }
            }
            InitReport::Started { .. } => {
                streams.terminal = passed.into_iter().next();
                return Ok(());
            }
            InitReport::Failed { step, errno } => return Err(host::explain_step(step, errno_from_wire(errno))),
            InitReport::CommandFailed { errno, .. } => return Err(explain_command(spec, errno_from_wire(errno))),
            InitReport::Exited { .. } | InitReport::Killed { .. } => {
                return Err(Error::Protocol("the init of the sandbox reported an end before a start"));
            }
        }
    }
}

fn wait_readable(sandbox: &Sandbox, deadline: Instant) -> Result<(), Error> {
    loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(remaining).map_err(|_| Error::SandboxLost)?;
        match poll(&mut [PollFd::new(sandbox, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Err(Error::Setup { step: "start the sandbox in time".into(), source: Errno::TIMEDOUT }),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::Setup { step: "wait for the sandbox".into(), source: errno }),
        }
    }
}

fn explain_command(spec: &Spec, source: Errno) -> Error {
    let name = spec.command.as_ref().and_then(|command| command.argv.first().cloned()).unwrap_or_default();
    match source {
        Errno::NOENT => Error::CommandNotFound { name },
        source => Error::CommandNotExecutable { name, source },
    }
}
