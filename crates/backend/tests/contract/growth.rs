//! The footprint of a backend over many life cycles of instances.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ringfence_backend::{Backend, ExitStatus};
use ringfence_testkit::process::descendants;

use super::Constructor;
use super::cases::{create, shell};

const CYCLES: usize = 200;

/// Cycles before the first measurement, in which buffers and tables reach their usual size.
const WARM_UP_CYCLES: usize = 20;

/// Maximum growth of the memory: about a kilobyte in each cycle.
const MAX_MEMORY_GROWTH: u64 = 256 << 10;

/// Maximum growth of each number. What leaks in each cycle grows by [`CYCLES`].
const MAX_GROWTH: usize = 5;

/// The resources that this process and its descendants use.
#[derive(Debug)]
struct Footprint {
    processes: usize,
    threads: usize,
    descriptors: usize,
    mounts: usize,
    memory_bytes: u64,
}

impl Footprint {
    fn measure() -> Self {
        let processes = family();
        let count = |entry: &str| {
            let of_process = |pid: &u32| fs::read_dir(format!("/proc/{pid}/{entry}")).map_or(0, Iterator::count);
            processes.iter().map(of_process).sum()
        };
        let memory_bytes = processes.iter().map(|pid| anonymous_memory(*pid)).sum();
        Self {
            processes: processes.len(),
            threads: count("task"),
            descriptors: count("fd"),
            mounts: fs::read_to_string("/proc/self/mountinfo").expect("read the mounts").lines().count(),
            memory_bytes,
        }
    }

    fn has_grown(&self, before: &Self) -> bool {
        let numbers =
            |footprint: &Self| [footprint.processes, footprint.threads, footprint.descriptors, footprint.mounts];
        numbers(self).iter().zip(numbers(before)).any(|(after, before)| *after > before + MAX_GROWTH)
            || self.memory_bytes > before.memory_bytes + MAX_MEMORY_GROWTH
    }
}

/// This process and its descendants.
fn family() -> BTreeSet<u32> {
    let own = std::process::id();
    let mut family = descendants(own);
    family.insert(own);
    family
}

/// Memory of a process that is not of files.
fn anonymous_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// The control groups of a process, in each hierarchy of the host.
fn cgroups(pid: u32) -> Vec<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let parts = text.lines().filter_map(|line| {
        let (_, hierarchy_and_path) = line.split_once(':')?;
        hierarchy_and_path.split_once(':')
    });
    parts
        .flat_map(|(hierarchy, path)| {
            let mounts = [hierarchy.trim_start_matches("name="), "unified", ""];
            mounts.map(|mount| Path::new("/sys/fs/cgroup").join(mount).join(path.trim_start_matches('/')))
        })
        .collect()
}

/// Creates an instance, uses it and stops it. Nothing of its processes may be left.
async fn cycle(backend: &Backend) {
    let instance = create(backend).await;
    assert_eq!(shell(&instance, "echo x > file").await.0, ExitStatus::Exited(0));
    let groups: BTreeSet<PathBuf> = family().into_iter().flat_map(cgroups).collect();
    instance.stop().await;
    let shared: BTreeSet<PathBuf> = family().into_iter().flat_map(cgroups).collect();
    let left: Vec<&PathBuf> = groups.difference(&shared).filter(|path| path.exists()).collect();
    assert!(left.is_empty(), "control groups are left: {left:?}");
}

pub(super) async fn repeated_instances_leave_nothing(backend: Constructor) {
    let backend = backend(None);
    for _ in 0..WARM_UP_CYCLES {
        cycle(&backend).await;
    }
    let before = Footprint::measure();
    for _ in 0..CYCLES {
        cycle(&backend).await;
    }
    let after = Footprint::measure();
    assert!(!after.has_grown(&before), "{before:?} became {after:?}");
    backend.end().await;
}
