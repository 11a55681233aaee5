//! The main loop of a zygote: forks the init process of a sandbox on request.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, set_parent_process_death_signal};

use super::huge_pages;
use super::protocol::{ReceivedForkRequest, ZygoteReply};
use crate::host;
use crate::init::{self, InitChannels};
use crate::namespaces::clone_init;
use crate::protocol::Channel;
use crate::sys::{Fork, Parent, exit_now};
use crate::volumes::CheckedVolume;

/// Serves fork requests until the parent closes the socket, and then exits. Returns an exit code only if the process
/// cannot be a zygote.
pub(super) fn serve(socket: OwnedFd) -> i32 {
    let channel = Channel::from(socket);
    // A fork copies only the calling thread: a lock that another thread has acquired would never be released in the
    // child.
    let is_single_threaded = host::require_single_thread().is_ok();
    if !is_single_threaded || set_parent_process_death_signal(Some(Signal::KILL)).is_err() {
        return 1;
    }
    huge_pages::collapse_heap();
    if channel.send(&ZygoteReply::Ready, &[]).is_err() {
        return 1;
    }
    while let Ok(Some((request, passed))) = channel.receive::<ReceivedForkRequest>() {
        let sent = match fork_init(request, passed) {
            Ok((pid, pidfd)) => {
                channel.send(&ZygoteReply::Forked { pid: pid.as_raw_nonzero().get() }, &[pidfd.as_fd()])
            }
            Err(errno) => channel.send(&ZygoteReply::Failed { errno: errno.raw_os_error() }, &[]),
        };
        if sent.is_err() {
            break;
        }
    }
    exit_now(0)
}

fn fork_init(request: ReceivedForkRequest, passed: Vec<OwnedFd>) -> Result<(Pid, OwnedFd), Errno> {
    let ReceivedForkRequest { mut plan, volumes, has_cgroup } = request;
    let mut passed = passed.into_iter();
    let mut next = || passed.next().ok_or(Errno::BADMSG);
    let (owner, creator) = (next()?, next()?);
    let cgroup = if has_cgroup { Some(next()?) } else { None };
    for description in volumes {
        plan.volumes.push(CheckedVolume::from_parts(description, next()?));
    }
    match clone_init(cgroup.as_ref().map(AsFd::as_fd), Parent::Grandparent)? {
        Fork::Child => init::run(plan, InitChannels::new(owner.into(), creator.into())),
        Fork::Parent { pid, pidfd } => Ok((pid, pidfd)),
    }
}
