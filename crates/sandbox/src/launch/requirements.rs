//! The protections of the host that a sandbox needs. A missing one is an error, unless the spec accepts it by name.

use std::sync::OnceLock;

use crate::cgroup::{CgroupParent, CgroupUnavailable};
use crate::enforcement::Enforcement;
use crate::error::{Error, errno_of};
use crate::host;
use crate::namespaces::IdMapping;
use ringfence_core::{Access, Spec, Weakness};

pub(super) fn find_cgroup_parent(spec: &Spec) -> Result<Option<CgroupParent>, Error> {
    /// A complete parent stays valid: this process does not change its cgroups.
    static COMPLETE: OnceLock<CgroupParent> = OnceLock::new();
    if let Some(parent) = COMPLETE.get() {
        return Ok(Some(parent.clone()));
    }
    let found = CgroupParent::find();
    let reason = match &found {
        Ok(parent) if Enforcement::in_parent(Some(parent)).is_complete() => {
            let _ = COMPLETE.set(parent.clone());
            None
        }
        Ok(_) => Some("some of the controllers memory, pids and cpu are not available".to_owned()),
        Err(CgroupUnavailable::Missing(reason)) => Some(reason.clone()),
        Err(CgroupUnavailable::Unreadable(error)) => {
            return Err(inspection_failed("read the cgroups of this process", error));
        }
    };
    match reason {
        Some(reason) if !spec.accept.contains(&Weakness::Cgroup) => Err(Error::MissingProtection {
            protection: "control groups for this user",
            reason,
            remedy: host::CGROUP_REMEDY.into(),
            weakness: Some(Weakness::Cgroup),
        }),
        _ => Ok(found.ok()),
    }
}

/// If the host cannot be inspected, the protection is not treated as missing.
fn inspection_failed(step: &str, error: &std::io::Error) -> Error {
    Error::Setup { step: step.into(), source: errno_of(error) }
}

pub(super) fn choose_id_mapping(spec: &Spec) -> Result<IdMapping, Error> {
    let has_writable_volume = spec.volumes.iter().any(|volume| volume.access == Access::ReadWrite);
    let detected = IdMapping::detect().map_err(|error| inspection_failed("read the ids of this user", &error))?;
    let id_mapping = match detected {
        // A subordinate id could not write files of the user.
        subordinate @ IdMapping::Subordinate { .. } if has_writable_volume => {
            subordinate.into_shared("a read-write volume can only be written with the user's own id")
        }
        id_mapping => id_mapping,
    };
    if let IdMapping::SharedWithUser { reason, .. } = &id_mapping
        && !spec.accept.contains(&Weakness::OwnUid)
    {
        return Err(Error::MissingProtection {
            protection: "a separate uid for the sandbox",
            reason: reason.clone(),
            remedy: host::SUBUID_REMEDY.into(),
            weakness: Some(Weakness::OwnUid),
        });
    }
    Ok(id_mapping)
}

/// Returns the Landlock ABI version; `None` if Landlock is missing and that is accepted.
pub(super) fn find_landlock(spec: &Spec) -> Result<Option<u32>, Error> {
    let abi = host::landlock_abi();
    if abi.is_none() && !spec.accept.contains(&Weakness::Landlock) {
        return Err(Error::MissingProtection {
            protection: "Landlock",
            reason: "the kernel was built without it, or it is not enabled".into(),
            remedy: host::LANDLOCK_REMEDY.into(),
            weakness: Some(Weakness::Landlock),
        });
    }
    Ok(abi)
}
