//! Maps the guest's single uid and gid to ids of the host.
//!
//! If root starts a sandbox, the sandbox gets a host id that no account and no other sandbox has. If an ordinary user
//! starts it, it gets one of the user's subordinate ids, or the user's own id if there is no subordinate range.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, getegid, geteuid};

use super::id_ranges::IdRange;
use super::uidmap_helper::{self, Helper};
use crate::error::{Error, errno_of};

/// The guest gid to which a second, subordinate gid is mapped, only so that `newgidmap` does not disable `setgroups`.
const SPARE_GID: u32 = 65533;

/// The source of the host ids of sandboxes, on this host and for this user.
#[derive(Debug)]
pub enum IdMapping {
    /// This process may map any id: each sandbox gets a separate one.
    Dedicated { uids: IdRange, gids: IdRange },
    /// One of the user's subordinate ids, mapped by the setuid helpers of shadow's `uidmap`.
    Subordinate { uids: IdRange, gids: IdRange, map_uid: PathBuf, map_gid: PathBuf },
    /// The user's own id, with the reason why no other id is available.
    SharedWithUser { reason: String, groups: SupplementaryGroups },
}

/// The way in which a guest with the user's own id can drop the user's supplementary groups.
///
/// The kernel lets an unprivileged process map its own gid only if `setgroups(2)` is disabled in the new namespace, and
/// then the groups cannot be dropped (`user_namespaces(7)`).
#[derive(Debug)]
pub enum SupplementaryGroups {
    /// This process may be privileged to map its gid without disabling `setgroups`.
    MapDirectly,
    /// `newgidmap` maps the user's own gid and a subordinate gid, and then leaves `setgroups` enabled.
    ByHelper { gids: IdRange, map_gid: PathBuf },
    /// The groups cannot be dropped.
    Retained,
}

/// Whether `setgroups(2)` is enabled in the guest's user namespace, so that the guest can drop the groups of the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setgroups {
    Enabled,
    Disabled,
}

impl IdMapping {
    /// Returns the best mapping that this user can have. Fails if that cannot be determined, instead of returning a
    /// weaker one.
    pub fn detect() -> std::io::Result<Self> {
        if geteuid().is_root() {
            let ranges = IdRange::for_root("/proc/self/uid_map")?.zip(IdRange::for_root("/proc/self/gid_map")?);
            return Ok(match ranges {
                Some((uids, gids)) => Self::Dedicated { uids, gids },
                None => Self::SharedWithUser {
                    reason: "the user namespace in which ringfence runs has too few ids".into(),
                    groups: SupplementaryGroups::MapDirectly,
                },
            });
        }
        let (uids, gids) = (IdRange::subordinate("/etc/subuid")?, IdRange::subordinate("/etc/subgid")?);
        let (map_uid, map_gid) = (uidmap_helper::find("newuidmap"), uidmap_helper::find("newgidmap"));
        Ok(match (uids, gids, map_uid, map_gid) {
            (Some(uids), Some(gids), Some(map_uid), Some(map_gid)) => {
                Self::Subordinate { uids, gids, map_uid, map_gid }
            }
            (uids, gids, _, map_gid) => {
                let reason = match (uids, gids) {
                    (Some(_), Some(_)) => "newuidmap and newgidmap are not installed",
                    _ => "/etc/subuid and /etc/subgid have no range for this user",
                };
                Self::SharedWithUser { reason: reason.into(), groups: SupplementaryGroups::by_helper(gids, map_gid) }
            }
        })
    }

    /// Converts to the mapping of a sandbox that must have the user's own uid.
    pub(crate) fn into_shared(self, reason: &str) -> Self {
        let groups = match self {
            Self::SharedWithUser { groups, .. } => groups,
            Self::Subordinate { gids, map_gid, .. } => SupplementaryGroups::ByHelper { gids, map_gid },
            Self::Dedicated { .. } => SupplementaryGroups::MapDirectly,
        };
        Self::SharedWithUser { reason: reason.into(), groups }
    }

    /// The host's uid and gid of the sandbox whose init is `pid`.
    pub(crate) fn host_ids(&self, pid: Pid) -> (u32, u32) {
        match self {
            Self::Dedicated { uids, gids } | Self::Subordinate { uids, gids, .. } => (uids.pick(pid), gids.pick(pid)),
            Self::SharedWithUser { .. } => (geteuid().as_raw(), getegid().as_raw()),
        }
    }

    /// Whether the guest has the same uid as the user's other processes.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Self::SharedWithUser { .. })
    }

    /// Maps the guest's id in the user namespace of `pid` to the ids of [`Self::host_ids`].
    pub(crate) fn apply(&self, pid: Pid, guest: u32) -> Result<Setgroups, Error> {
        let (uid, gid) = self.host_ids(pid);
        let proc = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
        match self {
            Self::Dedicated { .. } => {
                write_map(&proc.join("gid_map"), guest, gid)?;
                write_map(&proc.join("uid_map"), guest, uid)?;
                Ok(Setgroups::Enabled)
            }
            Self::Subordinate { map_uid, map_gid, .. } => {
                // Both run at the same time, because starting a program takes longest.
                let gid_helper = Helper::start(map_gid, pid, &[(guest, gid)])?;
                let uid_helper = Helper::start(map_uid, pid, &[(guest, uid)])?;
                [gid_helper, uid_helper].into_iter().try_for_each(Helper::finish)?;
                Ok(Setgroups::Enabled)
            }
            Self::SharedWithUser { groups, .. } => {
                let setgroups = groups.map_gid(pid, guest, gid)?;
                write_map(&proc.join("uid_map"), guest, uid)?;
                Ok(setgroups)
            }
        }
    }
}

impl SupplementaryGroups {
    fn by_helper(gids: Option<IdRange>, map_gid: Option<PathBuf>) -> Self {
        match (gids, map_gid) {
            (Some(gids), Some(map_gid)) => Self::ByHelper { gids, map_gid },
            _ => Self::Retained,
        }
    }

    /// Maps the user's own gid, without disabling `setgroups` if that is possible.
    fn map_gid(&self, pid: Pid, guest: u32, gid: u32) -> Result<Setgroups, Error> {
        let proc = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
        let is_mapped = match self {
            Self::MapDirectly => write_map(&proc.join("gid_map"), guest, gid).is_ok(),
            Self::ByHelper { gids, map_gid } => {
                // The value does not matter: the guest has no capability to switch to this gid.
                let spare = if guest == SPARE_GID { SPARE_GID - 1 } else { SPARE_GID };
                let helper = Helper::start(map_gid, pid, &[(guest, gid), (spare, gids.pick(pid))]);
                // `newgidmap` refuses a user whose gid differs from that of the account.
                helper.and_then(Helper::finish).is_ok()
            }
            Self::Retained => false,
        };
        if is_mapped {
            // An outer user namespace may have disabled `setgroups`.
            let is_allowed = fs::read_to_string(proc.join("setgroups")).is_ok_and(|state| state.trim() == "allow");
            return Ok(if is_allowed { Setgroups::Enabled } else { Setgroups::Disabled });
        }
        write_file(&proc.join("setgroups"), "deny")?;
        write_map(&proc.join("gid_map"), guest, gid)?;
        Ok(Setgroups::Disabled)
    }
}

fn write_map(path: &Path, guest: u32, host: u32) -> Result<(), Error> {
    write_file(path, &format!("{guest} {host} 1"))
}

fn write_file(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text)
        .map_err(|error| Error::Setup { step: format!("write {}", path.display()), source: errno_of(&error) })
}
