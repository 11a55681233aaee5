//! State of the host that sandboxes could leave behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::process;

/// Mounts, control groups, processes and namespaces at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSnapshot {
    /// Number of mounts in the mount namespace of the test.
    pub mounts: usize,
    /// Control groups whose names begin like those of sandboxes, also of other tests.
    pub cgroups: BTreeSet<String>,
    /// Number of processes with a uid that only sandboxes of root have.
    pub guest_processes: usize,
    pub net_namespaces: usize,
}

/// The range of host uids for sandboxes that root starts.
const GUEST_UIDS: std::ops::Range<u32> = 0x7800_0000..0x7840_0000;

impl HostSnapshot {
    pub fn take() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("read the mounts").lines().count();
        let mut cgroups = BTreeSet::new();
        collect_cgroups(Path::new("/sys/fs/cgroup"), &mut cgroups);
        let mut guest_processes = 0;
        let mut namespaces = BTreeSet::new();
        for pid in process::all() {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let uid =
                status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok());
            guest_processes += usize::from(uid.is_some_and(|uid| GUEST_UIDS.contains(&uid)));
            namespaces.extend(fs::read_link(format!("/proc/{pid}/ns/net")).ok());
        }
        Self { mounts, cgroups, guest_processes, net_namespaces: namespaces.len() }
    }
}

fn collect_cgroups(directory: &Path, found: &mut BTreeSet<String>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        if entry.file_name().as_encoded_bytes().starts_with(b"ringfence-") {
            found.insert(entry.path().display().to_string());
        }
        collect_cgroups(&entry.path(), found);
    }
}
