//! The setup of an init: drops everything of the host, and isolates itself as the guest.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::{InitChannels, Plan};
use crate::error::{SetupError, SetupStep, errno_of};
use crate::protocol::{Channel, InitReport, InitRequest};
use crate::sys::NotificationListener;
use crate::volumes::OpenVolume;
use crate::{mounts, namespaces, sys};

/// Closes all descriptors of the parent process, except those of the plan and the channels.
pub(super) fn close_inherited_descriptors(plan: &Plan, channels: &InitChannels) -> Result<(), SetupError> {
    let describe = || "close the host's descriptors".to_owned();
    // 0 to 2 stay open, so that no later descriptor gets a number that a command's streams will have.
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).step(describe)?;
    rustix::stdio::dup2_stdin(&null).step(describe)?;
    rustix::stdio::dup2_stdout(&null).step(describe)?;
    rustix::stdio::dup2_stderr(&null).step(describe)?;
    drop(null);
    let mut next = 3;
    for descriptor in plan.descriptors(channels) {
        if descriptor > next {
            sys::close_range(next, descriptor - 1, 0).step(describe)?;
        }
        next = descriptor + 1;
    }
    sys::close_range(next, u32::MAX, 0).step(describe)
}

/// Isolates this process; afterwards it has no more rights than the guest. Returns the listener for system calls.
pub(super) fn isolate(plan: &Plan, channels: &mut InitChannels) -> Result<NotificationListener, SetupError> {
    namespaces::enter_network_namespace()?;
    prefer_as_oom_victim();
    sys::erase_arguments().map_err(|error| errno_of(&error)).step(|| "erase the command line".into())?;
    // The sandbox must not inherit the keys of the user's login. A kernel without keyrings returns ENOSYS.
    match sys::join_new_session_keyring() {
        Err(Errno::NOSYS | Errno::PERM) => {}
        result => result.step(|| "leave the session keyring".into())?,
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    namespaces::set_host_names()?;
    if let Some(egress) = namespaces::set_up_network(&plan.network)? {
        // From here on only the host has the sockets, so connections fail when the host closes them.
        channels.report(&InitReport::Egress, &egress.into_descriptors());
    }

    // Opened with the rights of the user who started the sandbox, which decide what may be mounted.
    let sources = mounts::open_sources(&plan.entries)?;
    let mut volumes = Vec::new();
    if !plan.host_opens_volumes {
        for volume in &plan.volumes {
            volumes.push(volume.open()?);
        }
    }
    let may_drop_groups = wait_for_host(plan, channels.owner()?, &mut volumes)?;
    // After the cgroup was joined, so that it is the root of the namespace.
    namespaces::enter_cgroup_namespace()?;
    become_guest(plan.uid, may_drop_groups)?;
    let workspace = (&plan.workspace, &*plan.workspace_entries);
    mounts::build_root(&plan.entries, sources, &volumes, workspace, &plan.network, &plan.restrictions)?;
    drop(volumes);
    plan.restrictions.apply()
}

/// Makes the processes of the sandbox the first victims if the host runs out of memory. Needs no privilege; if it
/// fails, the kernel chooses as usual.
fn prefer_as_oom_victim() {
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
}

/// Waits until the host has mapped the ids. Meanwhile joins cgroups and receives volumes that the host has opened.
/// Returns whether the groups can be dropped.
fn wait_for_host(plan: &Plan, owner: &Channel, volumes: &mut Vec<OpenVolume>) -> Result<bool, SetupError> {
    let describe = || "receive requests from the host".to_owned();
    loop {
        match owner.receive::<InitRequest>().step(describe)? {
            Some((InitRequest::Isolate { may_drop_groups }, _)) if volumes.len() == plan.volumes.len() => {
                return Ok(may_drop_groups);
            }
            Some((InitRequest::JoinCgroups, passed)) => passed.iter().try_for_each(join_cgroup)?,
            Some((InitRequest::Volume, passed)) if volumes.len() + passed.len() <= plan.volumes.len() => {
                for tree in passed {
                    volumes.push(plan.volumes[volumes.len()].with_tree(tree));
                }
            }
            Some(_) => return Err(Errno::PROTO).step(describe),
            None => return Err(Errno::PIPE).step(describe),
        }
    }
}

fn join_cgroup(task_file: &OwnedFd) -> Result<(), SetupError> {
    rustix::io::write(task_file, b"0").map(drop).step(|| "join the cgroup".into())
}

fn become_guest(id: u32, may_drop_groups: bool) -> Result<(), SetupError> {
    let describe = || format!("become uid {id}");
    let uid = rustix::process::Uid::from_raw(id);
    let gid = rustix::process::Gid::from_raw(id);
    if may_drop_groups {
        set_thread_groups(&[]).step(describe)?;
    }
    set_thread_res_gid(gid, gid, gid).step(describe)?;
    set_thread_res_uid(uid, uid, uid).step(describe)
}
