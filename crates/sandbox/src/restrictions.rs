//! The restrictions of a guest that do not depend on its mounts: resource limits, capabilities, Landlock, seccomp.
//!
//! The init applies them once to itself, and every process of the sandbox inherits them. The order matters: each step
//! removes a right that only earlier steps need, and seccomp is last.

use std::path::PathBuf;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal};
use rustix::thread::set_no_new_privs;
use serde::{Deserialize, Serialize};

use crate::enforcement::Enforcement;
use crate::error::{SetupError, SetupStep};
use crate::rlimits::MAX_OPEN_FILES_WITH_SHARED_UID;
use crate::sys::NotificationListener;
use crate::{capabilities, landlock, rlimits, seccomp};
use ringfence_core::Limits;

/// The parameters of the restrictions.
#[derive(Serialize, Deserialize)]
pub(crate) struct Restrictions {
    pub(crate) limits: Limits,
    pub(crate) enforcement: Enforcement,
    /// The newest Landlock ABI version that the Linux kernel supports; `None` only if the spec accepts that Landlock is
    /// missing.
    pub(crate) landlock_abi: Option<u32>,
    /// Whether the guest has the uid of the user who started it. The Linux kernel then counts the resources of both
    /// together.
    #[serde(rename = "uid_is_shared")]
    pub(crate) is_uid_shared: bool,
    /// Paths that the guest may write, in addition to the workspace and the temporary directories.
    pub(crate) writable: Vec<PathBuf>,
}

impl Restrictions {
    /// Applies all restrictions to this process. No process can remove them later. Returns the listener for the system
    /// calls that the seccomp filter passes to this process.
    pub(crate) fn apply(&self) -> Result<NotificationListener, SetupError> {
        rlimits::apply(&self.limits, self.max_open_files(), self.enforcement)?;
        capabilities::drop_all().step(|| "drop all capabilities".into())?;
        set_no_new_privs(true).step(|| "set no_new_privs".into())?;
        if let Some(abi) = self.landlock_abi {
            landlock::restrict_files(abi, &self.writable).map_err(|error| SetupError {
                step: format!("restrict files with Landlock: {error}"),
                errno: Errno::PERM,
            })?;
        }
        // A change of credentials resets both attributes, so they are set after the last change. No process may inspect
        // the init, and the init never outlives its parent.
        set_dumpable_behavior(DumpableBehavior::NotDumpable).step(|| "make the init not dumpable".into())?;
        set_parent_process_death_signal(Some(Signal::KILL))
            .step(|| "set the parent-death signal of the init".into())?;
        seccomp::install(self.enforcement).step(|| "install the seccomp filter".into())
    }

    fn max_open_files(&self) -> u32 {
        let max = if self.is_uid_shared { MAX_OPEN_FILES_WITH_SHARED_UID } else { u32::MAX };
        self.limits.open_files.min(max)
    }
}
