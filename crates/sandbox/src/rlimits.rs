//! Resource limits of each process (`setrlimit(2)`), and the CPU affinity.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::enforcement::Enforcement;
use crate::error::{SetupError, SetupStep};
use ringfence_core::Limits;

/// Maximum number of open files of one process if the guest shares its uid with the user who started it.
///
/// The kernel counts descriptors in flight (sent through Unix sockets and not yet received) for each uid of the host,
/// and refuses to send more (`ETOOMANYREFS`) to a process whose soft `RLIMIT_NOFILE` is below that count (unix(7)). A
/// guest with the user's uid could therefore prevent the user's other programs from passing descriptors. This limit is
/// half of the usual soft limit of 1024; a guest can exceed it by one message, of 253 descriptors at most.
pub const MAX_OPEN_FILES_WITH_SHARED_UID: u32 = 512;

/// Sets the resource limits of this process, and its CPU affinity if no cgroup limits CPU time.
pub(crate) fn apply(limits: &Limits, max_open_files: u32, enforcement: Enforcement) -> Result<(), SetupError> {
    let mut rlimits = vec![
        // 1, not 0: at 1 the kernel writes no core dump and also starts no core dump handler (core(5)).
        (Resource::Core, 1),
        (Resource::Nofile, max_open_files.into()),
        (Resource::Nproc, limits.pids.into()),
        (Resource::Memlock, 8 << 20),
        (Resource::Rtprio, 0),
        (Resource::Nice, 0),
        (Resource::Sigpending, 4096),
        (Resource::Msgqueue, 64 << 10),
    ];
    if !enforcement.memory_by_cgroup {
        rlimits.push((Resource::Data, limits.memory_bytes));
    }
    for (resource, limit) in rlimits {
        // An ordinary user cannot exceed the present hard limit.
        let limit = getrlimit(resource).maximum.map_or(limit, |hard| hard.min(limit));
        let rlimit = Rlimit { current: Some(limit), maximum: Some(limit) };
        setrlimit(resource, rlimit).step(|| format!("limit {resource:?}"))?;
    }
    if !enforcement.cpu_by_cgroup {
        restrict_to_cpus(limits.cpus).step(|| "restrict the sandbox to some CPUs".into())?;
    }
    Ok(())
}

/// Restricts this process to as many of its CPUs as the limit, rounded up.
fn restrict_to_cpus(cpus: f64) -> rustix::io::Result<()> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let count = cpus.ceil().max(1.0) as u32;
    let available = sched_getaffinity(None)?;
    if available.count() <= count {
        return Ok(());
    }
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| available.is_set(*cpu)).collect();
    // Spreads different sandboxes over the CPUs.
    let offset = std::process::id() as usize + rustix::thread::sched_getcpu();
    let mut chosen = CpuSet::new();
    for step in 0..count as usize {
        chosen.set(all[(offset + step) % all.len()]);
    }
    sched_setaffinity(None, &chosen)
}
