//! Whom the guest is on the host: one id of the host, mapped to the guest's single uid and gid.
//!
//! Started by root, every sandbox has an id of its own that nobody else on the host has. Started by
//! an ordinary user, it has one of the user's subordinate ids where there is a range for them, and
//! the user's own id otherwise.

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, getegid, geteuid};

use crate::error::Error;

/// A range that neither people, systemd's dynamic users nor its containers use
/// (systemd's UIDS-GIDS document, "1879048192…2147352575: unused").
const RESERVED: Range = Range { first: 0x7800_0000, count: 1 << 22 };

/// The guest gid of a subordinate id. It is mapped only so that `newgidmap` does not disable `setgroups`.
const SPARE_GID: u32 = 65533;

const HELPER_DEADLINE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    first: u32,
    count: u32,
}

impl Range {
    /// Different for any two live processes while the range is larger than the host's pid range.
    fn pick(self, pid: Pid) -> u32 {
        self.first + pid.as_raw_nonzero().get().cast_unsigned() % self.count
    }

    fn contains(self, other: Self) -> bool {
        self.first <= other.first && self.first.saturating_add(self.count) >= other.first + other.count
    }
}

/// How the guest's id is chosen on this host, for this user.
#[derive(Debug)]
pub enum IdMapping {
    /// This process may map any id: each sandbox gets one of its own.
    Dedicated { uids: IdRange, gids: IdRange },
    /// The user's subordinate ids, mapped by the setuid helpers of shadow's `uidmap`.
    Subordinate { uids: IdRange, gids: IdRange, map_uid: PathBuf, map_gid: PathBuf },
    /// The user's own id, with the reason why there is nothing better.
    SharedWithUser { reason: String, groups: SupplementaryGroups },
}

/// How a guest with the user's own id can drop the user's supplementary groups.
///
/// The kernel lets an unprivileged process map its own gid only if `setgroups(2)` is given up in the new namespace,
/// and then the groups stay (`user_namespaces(7)`).
#[derive(Debug)]
pub enum SupplementaryGroups {
    /// This process may be privileged to map its gid without giving up `setgroups`.
    MapDirectly,
    /// `newgidmap` maps the user's own gid and, beside it, a subordinate one, and then leaves `setgroups` allowed.
    ByHelper { gids: IdRange, map_gid: PathBuf },
    /// The groups cannot be dropped.
    Kept,
}

/// Whether the guest can drop the groups of the user who started it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Groups {
    Droppable,
    Kept,
}

/// Host ids that a sandbox may have one of.
#[derive(Debug, Clone, Copy)]
pub struct IdRange(Range);

impl IdMapping {
    /// What this user can have on this host. Where that cannot be looked at, nothing is taken for weaker than it is.
    pub fn detect() -> std::io::Result<Self> {
        if geteuid().is_root() {
            let ranges = mapped_range("/proc/self/uid_map")?.zip(mapped_range("/proc/self/gid_map")?);
            return Ok(match ranges {
                Some((uids, gids)) => Self::Dedicated { uids: IdRange(uids), gids: IdRange(gids) },
                None => Self::SharedWithUser {
                    reason: "the user namespace that ringfence runs in has too few ids".into(),
                    groups: SupplementaryGroups::MapDirectly,
                },
            });
        }
        let uids = subordinate_range("/etc/subuid")?.map(IdRange);
        let gids = subordinate_range("/etc/subgid")?.map(IdRange);
        let (map_uid, map_gid) = (find_helper("newuidmap"), find_helper("newgidmap"));
        Ok(match (uids, gids, map_uid, map_gid) {
            (Some(uids), Some(gids), Some(map_uid), Some(map_gid)) => {
                Self::Subordinate { uids, gids, map_uid, map_gid }
            }
            (uids, gids, _, map_gid) => {
                let why = match (uids, gids) {
                    (Some(_), Some(_)) => "newuidmap and newgidmap are not installed",
                    _ => "no range for this user in /etc/subuid and /etc/subgid",
                };
                Self::SharedWithUser { reason: why.into(), groups: SupplementaryGroups::by_helper(gids, map_gid) }
            }
        })
    }

    /// The same for a sandbox that must have the user's own uid.
    pub(crate) fn into_own(self, why: &str) -> Self {
        let groups = match self {
            Self::SharedWithUser { groups, .. } => groups,
            Self::Subordinate { gids, map_gid, .. } => SupplementaryGroups::ByHelper { gids, map_gid },
            Self::Dedicated { .. } => SupplementaryGroups::MapDirectly,
        };
        Self::SharedWithUser { reason: why.into(), groups }
    }

    /// The host's ids of the sandbox whose init is `pid`.
    pub(crate) fn host_ids(&self, pid: Pid) -> (u32, u32) {
        match self {
            Self::Dedicated { uids, gids } | Self::Subordinate { uids, gids, .. } => (uids.0.pick(pid), gids.0.pick(pid)),
            Self::SharedWithUser { .. } => (geteuid().as_raw(), getegid().as_raw()),
        }
    }

    /// Whether the guest has the same uid as the user's other processes.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Self::SharedWithUser { .. })
    }

    /// Maps `guest` in the user namespace of `pid` to the ids of [`Self::host_ids`].
    pub(crate) fn map(&self, pid: Pid, guest: u32) -> Result<Groups, Error> {
        let (uid, gid) = self.host_ids(pid);
        let proc = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
        match self {
            Self::Dedicated { .. } => {
                write_map(&proc.join("gid_map"), guest, gid)?;
                write_map(&proc.join("uid_map"), guest, uid)?;
                Ok(Groups::Droppable)
            }
            Self::Subordinate { map_uid, map_gid, .. } => {
                // Both at once: each is a program of its own to start.
                let gids = run_helper(map_gid, pid, &[(guest, gid)])?;
                let uids = run_helper(map_uid, pid, &[(guest, uid)])?;
                [gids, uids].into_iter().try_for_each(finish_helper)?;
                Ok(Groups::Droppable)
            }
            Self::SharedWithUser { groups, .. } => {
                let groups = groups.map(pid, guest, gid)?;
                write_map(&proc.join("uid_map"), guest, uid)?;
                Ok(groups)
            }
        }
    }
}

impl SupplementaryGroups {
    fn by_helper(gids: Option<IdRange>, map_gid: Option<PathBuf>) -> Self {
        match (gids, map_gid) {
            (Some(gids), Some(map_gid)) => Self::ByHelper { gids, map_gid },
            _ => Self::Kept,
        }
    }

    /// Maps the user's own gid, without giving up `setgroups` where that is possible.
    fn map(&self, pid: Pid, guest: u32, gid: u32) -> Result<Groups, Error> {
        let proc = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
        let mapped = match self {
            Self::MapDirectly => write_map(&proc.join("gid_map"), guest, gid).is_ok(),
            Self::ByHelper { gids, map_gid } => {
                // Any other id will do: the guest has no capability to take it.
                let spare = if guest == SPARE_GID { SPARE_GID - 1 } else { SPARE_GID };
                let helper = run_helper(map_gid, pid, &[(guest, gid), (spare, gids.0.pick(pid))]);
                // `newgidmap` refuses a user whose gid differs from that of their account.
                helper.and_then(finish_helper).is_ok()
            }
            Self::Kept => false,
        };
        if mapped {
            // An outer user namespace may have disabled `setgroups`.
            let allowed = fs::read_to_string(proc.join("setgroups")).is_ok_and(|state| state.trim() == "allow");
            return Ok(if allowed { Groups::Droppable } else { Groups::Kept });
        }
        write_file(&proc.join("setgroups"), "deny")?;
        write_map(&proc.join("gid_map"), guest, gid)?;
        Ok(Groups::Kept)
    }
}

/// The reserved range, or what of the host's ids this user namespace has (in a container).
fn mapped_range(map: &str) -> std::io::Result<Option<Range>> {
    Ok(read_if_there(map)?.and_then(|text| choose_range(&text)))
}

/// A file that some hosts do not have, or have for others only.
fn read_if_there(path: &str) -> std::io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => Ok(None),
        read => read.map(Some),
    }
}

fn choose_range(map: &str) -> Option<Range> {
    /// Fewer would soon be given to two sandboxes at once.
    const LEAST: u32 = 1024;
    let parse = |line: &str| {
        let mut fields = line.split_whitespace().map(str::parse::<u32>);
        let first = fields.next()?.ok()?;
        Some(Range { first, count: fields.nth(1)?.ok()? })
    };
    let ranges: Vec<Range> = map.lines().filter_map(parse).collect();
    if ranges.iter().any(|range| range.contains(RESERVED)) {
        return Some(RESERVED);
    }
    // The upper half, to stay clear of accounts that exist in the container.
    let largest = ranges.into_iter().max_by_key(|range| range.count)?;
    let half = largest.count / 2;
    (half >= LEAST).then(|| Range { first: largest.first + half, count: half })
}

fn subordinate_range(file: &str) -> std::io::Result<Option<Range>> {
    let uid = geteuid().as_raw().to_string();
    let passwd = read_if_there("/etc/passwd")?.unwrap_or_default();
    let name = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    });
    Ok(read_if_there(file)?.and_then(|text| parse_subordinate(&text, &uid, name.as_deref())))
}

fn parse_subordinate(text: &str, uid: &str, name: Option<&str>) -> Option<Range> {
    text.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        let owner = fields.next()?;
        let first = fields.next()?.parse().ok()?;
        let count = fields.next()?.parse().ok().filter(|count| *count > 0)?;
        (owner == uid || Some(owner) == name).then_some(Range { first, count })
    })
}

fn find_helper(name: &str) -> Option<PathBuf> {
    ["/usr/bin", "/bin", "/usr/local/bin", "/run/wrappers/bin"]
        .iter()
        .map(|directory| Path::new(directory).join(name))
        .find(|path| path.is_file() && is_of_root(path) && path.parent().is_some_and(is_of_root))
}

/// Whether only root can write a file or directory. The helpers run with root's rights, so a program that another user,
/// or a guest with that user's id, could have written is not accepted as a helper.
fn is_of_root(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.uid() == 0 && found.mode() & 0o022 == 0)
}

fn write_map(path: &Path, guest: u32, host: u32) -> Result<(), Error> {
    write_file(path, &format!("{guest} {host} 1"))
}

fn write_file(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(|error| Error::Setup {
        step: format!("write {}", path.display()),
        source: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO),
    })
}

fn run_helper(helper: &Path, pid: Pid, ids: &[(u32, u32)]) -> Result<(PathBuf, std::process::Child), Error> {
    let child = Command::new(helper)
        .env_clear()
        .arg(pid.as_raw_nonzero().to_string())
        .args(ids.iter().flat_map(|(guest, host)| [guest.to_string(), host.to_string(), "1".into()]))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| helper_failed(helper, &error.to_string()))?;
    Ok((helper.to_owned(), child))
}

fn finish_helper((helper, mut child): (PathBuf, std::process::Child)) -> Result<(), Error> {
    let deadline = Instant::now() + HELPER_DEADLINE;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(_)) => {
                let mut why = String::new();
                let _ = child.stderr.take().map(|stderr| stderr.take(4096).read_to_string(&mut why));
                return Err(helper_failed(&helper, why.trim()));
            }
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_micros(100)),
            Ok(None) => {
                let _ = child.kill().and_then(|()| child.wait());
                return Err(helper_failed(&helper, "it did not end in time"));
            }
            Err(error) => return Err(helper_failed(&helper, &error.to_string())),
        }
    }
}

fn helper_failed(helper: &Path, why: &str) -> Error {
    Error::MissingProtection {
        protection: "a uid of its own for the sandbox",
        why: format!("{} failed: {why}", helper.display()),
        remedy: "check /etc/subuid and /etc/subgid, and that newuidmap and newgidmap are setuid root".into(),
        weakness: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_found_by_name_or_uid() {
        let text = "other:1:2\nagent:100000:65536\n1234:300000:10\nbroken\nzero:5:0\n";
        let range = |uid, name| parse_subordinate(text, uid, name).map(|range| (range.first, range.count));
        assert_eq!(range("1000", Some("agent")), Some((100_000, 65_536)));
        assert_eq!(range("1234", None), Some((300_000, 10)));
        assert_eq!(range("1000", Some("nobody")), None);
        assert_eq!(range("0", Some("zero")), None);
    }

    #[test]
    fn a_container_with_few_ids_has_none_to_give() {
        let chosen = |map: &str| choose_range(map).map(|range| (range.first, range.count));
        assert_eq!(chosen("         0          0 4294967295\n"), Some((RESERVED.first, RESERVED.count)));
        assert_eq!(chosen("0 100000 65536\n"), Some((32_768, 32_768)));
        assert_eq!(chosen("0 1000 1\n"), None);
        assert_eq!(chosen(""), None);
    }

    #[test]
    fn live_processes_get_different_ids() {
        let pid = |raw| Pid::from_raw(raw).unwrap();
        assert_ne!(RESERVED.pick(pid(7)), RESERVED.pick(pid(8)));
        assert!(RESERVED.pick(pid(4_194_303)) < RESERVED.first + RESERVED.count);
    }
}
