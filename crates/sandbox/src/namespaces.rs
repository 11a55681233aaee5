//! The namespaces of a sandbox, and the ids that its user namespace maps.
//!
//! The init is cloned into user, mount, PID, IPC and UTS namespaces. It makes two more itself: the network namespace,
//! which is the slowest to make, while the host maps the ids and makes the cgroup; and the cgroup namespace, after it
//! has joined its cgroup.

mod id_mapping;
mod id_ranges;
mod network;
mod uidmap_helper;

use std::os::fd::BorrowedFd;

use crate::error::{SetupError, SetupStep};
use crate::sys::{self, Fork, Parent};

pub(crate) use id_mapping::Setgroups;
pub use id_mapping::{IdMapping, SupplementaryGroups};
pub(crate) use network::{enter_network_namespace, listen_transparently, set_up_network};

const CLONED: i32 =
    libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

/// Forks an init into new namespaces, and into `cgroup` (a v2 directory) if one is given.
pub(crate) fn clone_init(cgroup: Option<BorrowedFd<'_>>, parent: Parent) -> rustix::io::Result<Fork> {
    sys::clone_into(CLONED, cgroup, parent)
}

/// Makes a cgroup namespace, whose root is the cgroup of this process.
pub(crate) fn enter_cgroup_namespace() -> Result<(), SetupError> {
    sys::unshare(libc::CLONE_NEWCGROUP).step(|| "make a cgroup namespace".into())
}

/// Replaces the host's names, which a new UTS namespace copies.
pub(crate) fn set_host_names() -> Result<(), SetupError> {
    rustix::system::sethostname(b"ringfence").step(|| "set the host name".into())?;
    rustix::system::setdomainname(b"(none)").step(|| "set the domain name".into())
}
