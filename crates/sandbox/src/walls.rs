//! The walls around a guest that do not depend on its view: limits, capabilities, Landlock, seccomp.
//!
//! One implementation, applied once by the init to itself; every process of the sandbox inherits it.
//! The order matters: each step takes away what only the earlier ones needed, seccomp comes last.

mod file_rules;

use std::path::PathBuf;

use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, getrlimit, set_dumpable_behavior, set_parent_process_death_signal,
    setrlimit,
};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, CpuSet, clear_ambient_capability_set,
    remove_capability_from_bounding_set, sched_getaffinity, sched_setaffinity, set_capabilities,
    set_capabilities_secure_bits, set_no_new_privs,
};

use serde::{Deserialize, Serialize};

use crate::enforcement::Enforcement;
use crate::error::{Step, StepError};
use crate::in_flight;
use crate::seccomp;
use crate::sys::Listener;
use ringfence_core::Limits;

type Done = Result<(), StepError>;

/// What decides the walls.
#[derive(Serialize, Deserialize)]
pub(crate) struct Walls {
    pub(crate) limits: Limits,
    pub(crate) enforcement: Enforcement,
    /// The newest Landlock that this kernel has; `None` only where its absence was accepted.
    pub(crate) landlock_abi: Option<u32>,
    /// The guest has the uid of the user who started it, and shares the kernel's counters for it.
    pub(crate) uid_is_shared: bool,
    /// Where the guest may write, besides the fixed places.
    pub(crate) writable: Vec<PathBuf>,
}

/// Applies all restrictions to this process, irreversibly. Returns the listener for the calls that the seccomp filter
/// leaves to this process.
pub(crate) fn raise(walls: &Walls) -> Result<Listener, StepError> {
    limit(walls)?;
    drop_capabilities().step(|| "drop all capabilities".into())?;
    set_no_new_privs(true).step(|| "give up new privileges".into())?;
    if let Some(abi) = walls.landlock_abi {
        file_rules::enforce(abi, &walls.writable).map_err(|error| StepError {
            step: format!("restrict files with Landlock: {error}"),
            errno: Errno::PERM,
        })?;
    }
    // After the last change of credentials, which would undo both: nobody may look into the init, and
    // it never outlives the process that started it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).step(|| "hide the init's memory".into())?;
    set_parent_process_death_signal(Some(Signal::KILL)).step(|| "tie the init to its parent".into())?;
    seccomp::install(walls.enforcement).step(|| "install the seccomp filter".into())
}

fn limit(walls: &Walls) -> Done {
    let limits = &walls.limits;
    let mut bounds = vec![
        // 1, not 0: at 1 the kernel writes no core and also starts no handler for one (core(5)).
        (Resource::Core, 1),
        (Resource::Nofile, in_flight::open_files(limits, walls.uid_is_shared)),
        (Resource::Nproc, limits.pids.into()),
        (Resource::Memlock, 8 << 20),
        (Resource::Rtprio, 0),
        (Resource::Nice, 0),
        (Resource::Sigpending, 4096),
        (Resource::Msgqueue, 64 << 10),
    ];
    if !walls.enforcement.memory_by_cgroup {
        bounds.push((Resource::Data, limits.memory_bytes));
    }
    for (resource, bound) in bounds {
        // An ordinary user cannot go above the hard limit that it has.
        let bound = getrlimit(resource).maximum.map_or(bound, |hard| hard.min(bound));
        let rlimit = Rlimit { current: Some(bound), maximum: Some(bound) };
        setrlimit(resource, rlimit).step(|| format!("limit {resource:?}"))?;
    }
    if !walls.enforcement.cpu_by_cgroup {
        pin_to_cpus(limits.cpus).step(|| "choose the CPUs".into())?;
    }
    Ok(())
}

/// Keeps as many CPUs as the limit, rounded up, of those that this process has.
fn pin_to_cpus(cpus: f64) -> rustix::io::Result<()> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let wanted = cpus.ceil().max(1.0) as u32;
    let had = sched_getaffinity(None)?;
    if had.count() <= wanted {
        return Ok(());
    }
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| had.is_set(*cpu)).collect();
    // Different sandboxes start on different CPUs.
    let offset = std::process::id() as usize + rustix::thread::sched_getcpu();
    let mut kept = CpuSet::new();
    for step in 0..wanted as usize {
        kept.set(all[(offset + step) % all.len()]);
    }
    sched_setaffinity(None, &kept)
}

fn drop_capabilities() -> rustix::io::Result<()> {
    clear_ambient_capability_set()?;
    // Uid 0 means nothing here, now and for all children.
    set_capabilities_secure_bits(
        CapabilitiesSecureBits::NO_ROOT
            | CapabilitiesSecureBits::NO_ROOT_LOCKED
            | CapabilitiesSecureBits::NO_SETUID_FIXUP
            | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED,
    )?;
    for number in 0..64 {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            // The kernel's last capability is behind us.
            Err(Errno::INVAL) => break,
            result => result?,
        }
    }
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}
