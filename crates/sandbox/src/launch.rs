//! Starts a sandbox: checks that the host can keep every promise, then clones the init into its
//! namespaces, maps its ids, and waits until the command runs.

use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::Winsize;

use crate::cgroup::{Cgroup, CgroupUnavailable, CgroupParent};
use crate::enforcement::Enforcement;
use crate::error::Error;
use crate::frame::{Channel, Order, Report};
use crate::host;
use crate::identity::{Groups, IdMapping};
use crate::init;
use crate::init::{Host, Plan, PreparedCommand, Wiring};
use crate::launcher::InitialProcess;
use crate::sandbox::{Process, Sandbox, Streams};
use crate::sys;
use crate::sys::{Fork, Parent};
use crate::walls::Walls;
use crate::zygote::Zygote;
use crate::{pipe, view, volume};
use ringfence_core::{Access, Command, Spec, Weakness};

/// Two are missing here: the cgroup namespace must come after the cgroup is entered, and the network
/// namespace, the slowest, is made by the init while this side maps the ids and makes the cgroup.
const NAMESPACES: i32 =
    libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

/// Far more than a start takes on the slowest host; a start that takes longer is stuck.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// What the command's standard streams are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdio {
    /// Three pipes, whose other ends the caller gets.
    Pipes,
    /// One terminal inside the sandbox, so large from the start, whose controlling side the caller gets.
    Terminal(Winsize),
}

/// Makes the sandbox of `spec` and starts its command, if it has one.
///
/// The calling process must have one thread: the init goes on with a copy of its memory.
pub fn start(spec: &Spec, stdio: Stdio) -> Result<(Sandbox, Streams), Error> {
    begin(spec, stdio, &mut Birth::Clone, None)?.finish(spec)
}

/// How an init comes to be.
pub(crate) enum Birth<'a> {
    /// As a fork of this process.
    Clone,
    /// As a fork of a zygote, with its warm interpreter. Only for sandboxes without a command of their own.
    Zygote(&'a mut Zygote),
}

/// A sandbox whose init builds its walls.
pub(crate) struct Begun {
    sandbox: Sandbox,
    streams: Streams,
}

impl Begun {
    /// Waits until the walls stand and the command runs, if there is one.
    pub(crate) fn finish(self, spec: &Spec) -> Result<(Sandbox, Streams), Error> {
        let Self { mut sandbox, mut streams } = self;
        await_start(&mut sandbox, &mut streams, spec)?;
        Ok((sandbox, streams))
    }
}

/// Gives the init all that it needs. `first` is what it shall start by itself when the walls stand, with its
/// descriptors.
pub(crate) fn begin(
    spec: &Spec,
    stdio: Stdio,
    birth: &mut Birth<'_>,
    first: Option<(&InitialProcess, &[OwnedFd])>,
) -> Result<Begun, Error> {
    spec.validate()?;
    first.map_or(Ok(()), |(first, _)| first.command.validate())?;
    host::require_single_thread()?;
    let place = find_place(spec)?;
    let enforcement = Enforcement::of(place.as_ref());
    let identity = find_identity(spec)?;
    let landlock_abi = find_landlock(spec)?;
    let prepare = |command: &Command| PreparedCommand::new(command, &spec.environment);
    let command = spec.command.as_ref().map(prepare).transpose()?;
    let entries = view::entries(spec).map_err(|error| Error::Setup {
        step: "list the root view".into(),
        source: Errno::from_io_error(&error).unwrap_or(Errno::IO),
    })?;
    let (volumes, holds) = volume::check(spec)?;
    let (main, streams) = match command {
        Some(command) => wire(stdio).map(|(wiring, streams)| (Some((command, wiring)), streams))?,
        None => (None, Streams::default()),
    };
    let (channel, init_orders) = Channel::pair().map_err(Error::setup("make the control channel"))?;
    let (life, init_life) = Channel::pair().map_err(Error::setup("make the life line"))?;

    let host_opens_volumes = matches!(identity, IdMapping::Dedicated { .. });
    let writable = spec.volumes.iter().filter(|volume| volume.access == Access::ReadWrite);
    let plan = Plan {
        entries,
        volumes,
        host_opens_volumes,
        workspace: spec.workspace,
        uid: spec.uid,
        network: spec.network,
        walls: Walls {
            limits: spec.limits,
            enforcement,
            landlock_abi,
            uid_is_shared: identity.is_shared(),
            writable: writable.map(|volume| volume.guest.clone()).collect(),
        },
        main,
    };
    let make_cgroup = |place: CgroupParent| Cgroup::create(&place, &spec.limits);
    // On v2 a process is born in its group; on v1 it enters a group that may as well be made later.
    let (born_in, entered) = match place {
        Some(place @ CgroupParent::V2 { .. }) => (Some(make_cgroup(place)?), None),
        place => (None, place),
    };
    let birth_place = born_in.as_ref().and_then(Cgroup::birth_place);
    let process = match birth {
        Birth::Zygote(zygote) => zygote.bear(&plan, &init_orders, &init_life, birth_place)?,
        Birth::Clone => match clone_init(birth_place, Parent::This).map_err(host::explain_clone)? {
            Fork::Child => init::run(plan, Host::new(init_orders, init_life)),
            Fork::Parent { pid, pidfd } => Process { pid, pidfd },
        },
    };
    drop((init_orders, init_life));
    // From here on every early return ends the sandbox through its guards.
    let mut sandbox = Sandbox::new(process, channel, life, born_in, holds, spec, enforcement);
    let volumes = plan.volumes;
    drop(plan.main);

    let groups = identity.map(sandbox.pid(), spec.uid)?;
    if let Some(place) = entered {
        let entrances = sandbox.hold(make_cgroup(place)?)?;
        let entrances: Vec<_> = entrances.iter().map(AsFd::as_fd).collect();
        sandbox.control().order(&Order::Entrances, &entrances)?;
    }
    if host_opens_volumes {
        let ids = identity.host_ids(sandbox.pid());
        for volume in &volumes {
            sandbox.control().order(&Order::Volume, &[volume.open_mapped(ids)?.as_fd()])?;
        }
    }
    sandbox.control().order(&Order::Go { may_drop_groups: groups == Groups::Droppable }, &[])?;
    if let Some((first, descriptors)) = first {
        // Heard only once the walls stand; until then it waits in the channel.
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        sandbox.control().order(&first_order(first, birth), &descriptors)?;
    }
    Ok(Begun { sandbox, streams })
}

fn first_order(first: &InitialProcess, birth: &Birth<'_>) -> Order {
    let InitialProcess { process, command, environment } = first.clone();
    match birth {
        Birth::Zygote(_) => Order::Fork { process, workdir: command.workdir, environment },
        Birth::Clone => Order::Start { process, command, environment },
    }
}

/// Forks into the namespaces of a sandbox.
pub(crate) fn clone_init(birth_place: Option<BorrowedFd<'_>>, parent: Parent) -> rustix::io::Result<Fork> {
    sys::clone_into(NAMESPACES, birth_place, parent)
}

fn find_place(spec: &Spec) -> Result<Option<CgroupParent>, Error> {
    /// A good place stays one: this process does not leave its groups.
    static GOOD: OnceLock<CgroupParent> = OnceLock::new();
    if let Some(place) = GOOD.get() {
        return Ok(Some(place.clone()));
    }
    let found = CgroupParent::find();
    let why = match &found {
        Ok(place) if Enforcement::of(Some(place)).is_complete() => {
            let _ = GOOD.set(place.clone());
            None
        }
        Ok(_) => Some("some of the controllers memory, pids and cpu are not to be had".to_owned()),
        Err(CgroupUnavailable::None(why)) => Some(why.clone()),
        Err(CgroupUnavailable::Unseen(error)) => return Err(unseen("look at the control groups", error)),
    };
    match why {
        Some(why) if !spec.accept.contains(&Weakness::Cgroup) => Err(Error::MissingProtection {
            protection: "control groups for this user",
            why,
            remedy: host::CGROUP_REMEDY.into(),
            weakness: Some(Weakness::Cgroup),
        }),
        _ => Ok(found.ok()),
    }
}

/// What cannot be looked at is not taken for something that the host lacks.
fn unseen(step: &str, error: &std::io::Error) -> Error {
    Error::Setup { step: step.into(), source: Errno::from_io_error(error).unwrap_or(Errno::IO) }
}

fn find_identity(spec: &Spec) -> Result<IdMapping, Error> {
    let writes = spec.volumes.iter().any(|volume| volume.access == Access::ReadWrite);
    let detected = IdMapping::detect().map_err(|error| unseen("look at the ids of this user", &error))?;
    let identity = match detected {
        // A subordinate id could not write files of the user.
        identity @ IdMapping::Subordinate { .. } if writes => {
            identity.into_own("a read-write volume can only be written with the user's own id")
        }
        identity => identity,
    };
    if let IdMapping::SharedWithUser { reason: why, .. } = &identity
        && !spec.accept.contains(&Weakness::OwnUid)
    {
        return Err(Error::MissingProtection {
            protection: "a uid of its own for the sandbox",
            why: why.clone(),
            remedy: host::SUBUID_REMEDY.into(),
            weakness: Some(Weakness::OwnUid),
        });
    }
    Ok(identity)
}

fn find_landlock(spec: &Spec) -> Result<Option<u32>, Error> {
    let abi = host::landlock_abi();
    if abi.is_none() && !spec.accept.contains(&Weakness::Landlock) {
        return Err(Error::MissingProtection {
            protection: "Landlock",
            why: "the kernel was built without it, or it is not switched on".into(),
            remedy: host::LANDLOCK_REMEDY.into(),
            weakness: Some(Weakness::Landlock),
        });
    }
    Ok(abi)
}

fn wire(stdio: Stdio) -> Result<(Wiring, Streams), Error> {
    if let Stdio::Terminal(size) = stdio {
        return Ok((Wiring::Terminal(size), Streams::default()));
    }
    let (theirs, ours) = pipe::standard_streams().map_err(Error::setup("make the standard streams"))?;
    let [stdin, stdout, stderr] = ours.map(Some);
    Ok((Wiring::Descriptors(theirs.into()), Streams { stdin, stdout, stderr, ..Streams::default() }))
}

/// Waits for the reports that the walls stand and that the command runs.
fn await_start(sandbox: &mut Sandbox, streams: &mut Streams, spec: &Spec) -> Result<(), Error> {
    let deadline = Instant::now() + START_DEADLINE;
    loop {
        wait_readable(sandbox, deadline)?;
        let (report, passed) = sandbox.control().report()?;
        let passed = passed.into_iter().next();
        match report {
            Report::Ready => {
                streams.listener = passed.map(TcpListener::from);
                if spec.command.is_none() {
                    return Ok(());
                }
            }
            Report::Started { .. } => {
                streams.terminal = passed;
                return Ok(());
            }
            Report::Failed { step, errno } => return Err(host::explain_step(step, errno_of(errno))),
            Report::CommandFailed { errno, .. } => return Err(explain_command(spec, errno_of(errno))),
            Report::Exited { .. } | Report::Killed { .. } => return Err(Error::Protocol("an end before a start")),
        }
    }
}

fn wait_readable(sandbox: &Sandbox, deadline: Instant) -> Result<(), Error> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(|_| Error::LauncherLost)?;
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

pub(crate) fn errno_of(raw: i32) -> Errno {
    // Comes from inside: a number that is no errno must not become one silently.
    if (1..4096).contains(&raw) { Errno::from_raw_os_error(raw) } else { Errno::PROTO }
}
