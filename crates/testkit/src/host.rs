//! What sandboxes could leave behind on the host, counted.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Mounts, cgroups, processes and namespaces at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    pub mounts: usize,
    pub cgroups: BTreeSet<String>,
    /// Processes with a uid from the range that only sandboxes use.
    pub guest_processes: usize,
    pub net_namespaces: usize,
}

/// The range of host uids that sandboxes started by root have.
const GUEST_UIDS: std::ops::Range<u32> = 0x7800_0000..0x7840_0000;

impl Snapshot {
    pub fn take() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts are readable").lines().count();
        let mut cgroups = BTreeSet::new();
        collect_cgroups(Path::new("/sys/fs/cgroup"), &mut cgroups);
        let mut guest_processes = 0;
        let mut namespaces = BTreeSet::new();
        for entry in fs::read_dir("/proc").expect("/proc is readable").flatten() {
            let path = entry.path();
            let status = fs::read_to_string(path.join("status")).unwrap_or_default();
            let uid =
                status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok());
            guest_processes += usize::from(uid.is_some_and(|uid| GUEST_UIDS.contains(&uid)));
            namespaces.extend(fs::read_link(path.join("ns/net")).ok());
        }
        Self { mounts, cgroups, guest_processes, net_namespaces: namespaces.len() }
    }
}

/// Groups of sandboxes, by the beginning of their names.
fn collect_cgroups(directory: &Path, found: &mut BTreeSet<String>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        if entry.file_name().as_encoded_bytes().starts_with(b"ringfence-") {
            found.insert(entry.path().display().to_string());
        }
        collect_cgroups(&entry.path(), found);
    }
}
