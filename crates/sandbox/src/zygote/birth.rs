//! Births, as the zygote and its parent speak of them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::memory;
use crate::frame::Channel;
use crate::host;
use crate::init;
use crate::init::{Host, Plan};
use crate::launch::clone_init;
use crate::sys::{Fork, Parent, exit_now};
use crate::volume::{CheckedVolume, VolumeDescription};

/// Asks for an init. Carries its two channels, its cgroup where it is born in one, and its volumes.
#[derive(Serialize)]
pub(super) struct Request<'a> {
    plan: &'a Plan,
    volumes: Vec<&'a VolumeDescription>,
    is_born_in_cgroup: bool,
}

/// The same, as the zygote reads it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Requested {
    plan: Plan,
    volumes: Vec<VolumeDescription>,
    is_born_in_cgroup: bool,
}

/// From the zygote.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(super) enum Reply {
    /// Said once, unasked: it is warm.
    Ready,
    /// Carries the pidfd.
    Born {
        pid: i32,
    },
    Failed {
        errno: i32,
    },
}

impl<'a> Request<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        [orders, life]: [&'a Channel; 2],
        birth_place: Option<BorrowedFd<'a>>,
    ) -> (Self, Vec<BorrowedFd<'a>>) {
        let mut passed = vec![orders.as_fd(), life.as_fd()];
        passed.extend(birth_place);
        passed.extend(plan.volumes.iter().map(CheckedVolume::descriptor));
        let volumes = plan.volumes.iter().map(CheckedVolume::description).collect();
        (Self { plan, volumes, is_born_in_cgroup: birth_place.is_some() }, passed)
    }
}

/// The zygote's whole life. Gives an exit code only where it cannot begin.
pub(crate) fn serve(socket: OwnedFd) -> i32 {
    let channel = Channel::from(socket);
    // A lock held by another thread would stay held in every fork.
    let is_alone = host::require_single_thread().is_ok();
    if !is_alone || set_parent_process_death_signal(Some(Signal::KILL)).is_err() {
        return 1;
    }
    memory::compact();
    if channel.send(&Reply::Ready, &[]).is_err() {
        return 1;
    }
    while let Ok(Some((requested, passed))) = channel.receive::<Requested>() {
        let sent = match bear(requested, passed) {
            Ok((pid, pidfd)) => channel.send(&Reply::Born { pid: pid.as_raw_nonzero().get() }, &[pidfd.as_fd()]),
            Err(errno) => channel.send(&Reply::Failed { errno: errno.raw_os_error() }, &[]),
        };
        if sent.is_err() {
            break;
        }
    }
    exit_now(0)
}

fn bear(requested: Requested, passed: Vec<OwnedFd>) -> Result<(Pid, OwnedFd), Errno> {
    let Requested { mut plan, volumes, is_born_in_cgroup } = requested;
    let mut passed = passed.into_iter();
    let mut next = || passed.next().ok_or(Errno::BADMSG);
    let (orders, life) = (next()?, next()?);
    let birth_place = if is_born_in_cgroup { Some(next()?) } else { None };
    for description in volumes {
        plan.volumes.push(CheckedVolume::from_parts(description, next()?));
    }
    match clone_init(birth_place.as_ref().map(AsFd::as_fd), Parent::Grandparent)? {
        Fork::Child => init::run(plan, Host::new(orders.into(), life.into())),
        Fork::Parent { pid, pidfd } => Ok((pid, pidfd)),
    }
}
