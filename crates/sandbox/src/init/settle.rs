//! The init's first steps: out of everything that is the host's, into everything that is the guest's.

use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::{Host, Plan};
use crate::error::{Step, StepError};
use crate::frame::{Channel, Order};
use crate::volume::OpenVolume;
use crate::{mounts, sys, walls};
use ringfence_core::{Network, PROXY_PORT};

/// Closes everything that the starter had open, so that nothing of it can reach the guest.
pub(super) fn close_foreign_descriptors(plan: &Plan, host: &Host) -> Result<(), StepError> {
    let describe = || "close the host's descriptors".to_owned();
    // 0 to 2 stay taken: a descriptor opened later must not land where the command's own will be.
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).step(describe)?;
    rustix::stdio::dup2_stdin(&null).step(describe)?;
    rustix::stdio::dup2_stdout(&null).step(describe)?;
    rustix::stdio::dup2_stderr(&null).step(describe)?;
    drop(null);
    let mut next = 3;
    for kept in plan.descriptors(host) {
        if kept > next {
            sys::close_range(next, kept - 1, 0).step(describe)?;
        }
        next = kept + 1;
    }
    sys::close_range(next, u32::MAX, 0).step(describe)
}

/// Moves into the sandbox; afterwards this process has no more rights than the guest. Returns the listener of the
/// egress proxy, and the seccomp listener.
pub(super) fn settle(plan: &Plan, channel: &Channel) -> Result<(Option<OwnedFd>, sys::Listener), StepError> {
    sys::unshare(libc::CLONE_NEWNET).step(|| "make a network namespace".into())?;
    offer_to_the_oom_killer();
    sys::forget_arguments()
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        .step(|| "forget the command line".into())?;
    // Keys of the user's login must not be inherited. A kernel without keyrings has none to leave.
    match sys::join_new_session_keyring() {
        Err(Errno::NOSYS | Errno::PERM) => {}
        result => result.step(|| "leave the session keyring".into())?,
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::system::sethostname(b"ringfence").step(|| "set the host name".into())?;
    // A new namespace has a copy of the host's.
    rustix::system::setdomainname(b"(none)").step(|| "set the domain name".into())?;
    let listener = raise_network(plan.network)?;

    // Opened as the user who started the sandbox, whose rights decide what may be shown.
    let sources = mounts::open_sources(&plan.entries)?;
    let mut volumes = Vec::new();
    if !plan.host_opens_volumes {
        for volume in &plan.volumes {
            volumes.push(volume.open()?);
        }
    }
    let may_drop_groups = await_go(plan, channel, &mut volumes)?;
    // Only now, so that the namespace's root is the group that was entered.
    sys::unshare(libc::CLONE_NEWCGROUP).step(|| "make a cgroup namespace".into())?;
    become_guest(plan.uid, may_drop_groups)?;
    mounts::build(&plan.entries, sources, &volumes, &plan.workspace, &plan.walls)?;
    drop(volumes);
    let pending_calls = walls::raise(&plan.walls)?;
    Ok((listener, pending_calls))
}

fn enter_cgroup(entrance: &OwnedFd) -> Result<(), StepError> {
    rustix::io::write(entrance, b"0").map(drop).step(|| "enter the cgroup".into())
}

/// If the whole host runs out of memory, the guest goes first. Raising this needs no privilege; where
/// it fails, the kernel's own choice stands.
fn offer_to_the_oom_killer() {
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
}

fn raise_network(network: Network) -> Result<Option<OwnedFd>, StepError> {
    let describe = || "set up the loopback interface".to_owned();
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).step(describe)?;
    sys::raise_loopback(socket.as_fd()).step(describe)?;
    match network {
        Network::None => Ok(None),
        Network::Proxy => TcpListener::bind(("127.0.0.1", PROXY_PORT))
            .map(|listener| Some(listener.into()))
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
            .step(|| "listen for the egress proxy".into()),
    }
}

/// Waits until the host has mapped the ids; enters the cgroup and takes the volumes that it opened.
fn await_go(plan: &Plan, channel: &Channel, volumes: &mut Vec<OpenVolume>) -> Result<bool, StepError> {
    let describe = || "hear from the host".to_owned();
    loop {
        match channel.receive::<Order>().step(describe)? {
            Some((Order::Go { may_drop_groups }, _)) if volumes.len() == plan.volumes.len() => {
                return Ok(may_drop_groups);
            }
            Some((Order::Entrances, passed)) => passed.iter().try_for_each(enter_cgroup)?,
            Some((Order::Volume, passed)) if volumes.len() + passed.len() <= plan.volumes.len() => {
                for tree in passed {
                    volumes.push(plan.volumes[volumes.len()].with(tree));
                }
            }
            Some(_) => return Err(Errno::PROTO).step(describe),
            None => return Err(Errno::PIPE).step(describe),
        }
    }
}

fn become_guest(id: u32, may_drop_groups: bool) -> Result<(), StepError> {
    let describe = || format!("become uid {id}");
    let uid = rustix::process::Uid::from_raw(id);
    let gid = rustix::process::Gid::from_raw(id);
    if may_drop_groups {
        set_thread_groups(&[]).step(describe)?;
    }
    set_thread_res_gid(gid, gid, gid).step(describe)?;
    set_thread_res_uid(uid, uid, uid).step(describe)
}
