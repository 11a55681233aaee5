//! A user namespace whose only purpose is its id map, for an idmapped mount.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use crate::error::{Error, errno_of};
use crate::sys::{self, Fork, Parent};

/// Creates a user namespace that maps the volume's owner to the guest's ids.
pub(super) fn create_namespace(owner: (u32, u32), guest: (u32, u32)) -> Result<OwnedFd, Error> {
    let step = "map the owner of a volume";
    let parent = rustix::process::getpid();
    let (pid, pidfd) = match sys::clone_into(libc::CLONE_NEWUSER, None, Parent::This).map_err(Error::setup(step))? {
        Fork::Child => wait_to_be_killed(parent),
        Fork::Parent { pid, pidfd } => (pid, pidfd),
    };
    let proc = Path::new("/proc").join(pid.as_raw_nonzero().to_string());
    let result = fs::write(proc.join("uid_map"), format!("{} {} 1", owner.0, guest.0))
        .and_then(|()| fs::write(proc.join("gid_map"), format!("{} {} 1", owner.1, guest.1)))
        .and_then(|()| fs::File::open(proc.join("ns/user")));
    // The descriptor keeps the namespace alive from here on.
    let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
    let file = result.map_err(|error| errno_of(&error)).map_err(Error::setup(step))?;
    Ok(file.into())
}

/// The main function of the process that owns the namespace. It keeps no descriptor of its parent, and ends with it.
fn wait_to_be_killed(parent: Pid) -> ! {
    let tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let closed = sys::close_range(0, u32::MAX, 0);
    if tied.is_err() || closed.is_err() || rustix::process::getppid() != Some(parent) {
        sys::exit_now(1);
    }
    loop {
        std::thread::park();
    }
}
