//! The isolation mechanisms that this host supports, and explanations for those that it lacks.

use std::fs;

use rustix::io::Errno;

use crate::error::{Error, errno_of};
use crate::seccomp::BPF_MEMORY_EXHAUSTED;
use crate::sys;

pub const CGROUP_REMEDY: &str = "start ringfence in a delegated scope: `systemd-run --user --scope -p Delegate=yes ringfence …`, or as root; \
     without systemd, let an administrator give you a writable cgroup";
pub const SUBUID_REMEDY: &str = "install the `uidmap` package and add a range: `sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER`";
pub const LANDLOCK_REMEDY: &str =
    "use Linux 5.13 or later with CONFIG_SECURITY_LANDLOCK=y, and `landlock` in the kernel's `lsm=` list";

/// The Landlock ABI version of this kernel; `None` if Landlock is absent or disabled.
pub fn landlock_abi() -> Option<u32> {
    sys::landlock_abi()
}

/// Returns the setting that prevents user namespaces on this host, and its remedy. `None` if no such setting is known.
pub fn user_namespace_restriction() -> Option<(String, String)> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    if read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1" && !rustix::process::geteuid().is_root() {
        return Some((
            "AppArmor restricts user namespaces for unprivileged programs (Ubuntu 24.04 and later)".into(),
            "give ringfence an AppArmor profile with `userns,`, or `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`"
                .into(),
        ));
    }
    if read("/proc/sys/kernel/unprivileged_userns_clone") == "0" && !rustix::process::geteuid().is_root() {
        return Some((
            "the sysctl kernel.unprivileged_userns_clone is 0".into(),
            "`sudo sysctl kernel.unprivileged_userns_clone=1`".into(),
        ));
    }
    if read("/proc/sys/user/max_user_namespaces") == "0" {
        return Some((
            "the sysctl user.max_user_namespaces is 0".into(),
            "`sudo sysctl user.max_user_namespaces=15000`".into(),
        ));
    }
    None
}

/// Guesses that a container runtime forbids namespaces, for when no other explanation was found.
fn container_restriction() -> Option<(String, String)> {
    is_in_container().then(|| {
        (
            "this looks like a container whose runtime forbids namespaces".into(),
            "start the container with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined`, or run ringfence on its host"
                .into(),
        )
    })
}

fn is_in_container() -> bool {
    ["/.dockerenv", "/run/.containerenv"].iter().any(|path| fs::exists(path).unwrap_or(false))
}

/// Moves this process into a new user namespace.
pub fn enter_user_namespace() -> rustix::io::Result<()> {
    sys::unshare(libc::CLONE_NEWUSER)
}

pub(crate) fn require_single_thread() -> Result<(), Error> {
    let tasks = fs::read_dir("/proc/self/task")
        .map_err(|error| Error::Setup { step: "count the threads of this process".into(), source: errno_of(&error) })?;
    match tasks.count() {
        1 => Ok(()),
        threads => Err(Error::MultipleThreads(threads)),
    }
}

/// Explains why the namespaces could not be made.
pub(crate) fn explain_clone(source: Errno) -> Error {
    // A limit of this process is reached: the host lacks nothing.
    if matches!(source, Errno::MFILE | Errno::NFILE | Errno::AGAIN | Errno::NOMEM) {
        return Error::Setup { step: "start the first process of the sandbox".into(), source };
    }
    let (reason, remedy) = user_namespace_restriction().or_else(container_restriction).unwrap_or_else(|| {
        let remedy = match source {
            Errno::NOSPC | Errno::USERS => {
                "raise the sysctls user.max_user_namespaces, user.max_net_namespaces and similar ones"
            }
            Errno::NOSYS => "use Linux 5.13 or later",
            _ => "allow user namespaces for this user",
        };
        (format!("the kernel refused to make them ({source})"), remedy.into())
    });
    Error::MissingProtection { protection: "user namespaces", reason, remedy, weakness: None }
}

/// Explains why a step of the setup failed, if the host is known to be the reason.
pub(crate) fn explain_step(step: String, source: Errno) -> Error {
    if step.contains("seccomp") {
        return explain_seccomp(source);
    }
    if matches!(source, Errno::PERM | Errno::ACCESS) {
        if step.contains("private /proc") {
            return Error::MissingProtection {
                protection: "a private /proc",
                reason: "the kernel allows a new /proc only if no part of the existing one is covered, and parts of it are covered here".into(),
                remedy: "in a container: start it with `--security-opt systempaths=unconfined`".into(),
                weakness: None,
            };
        }
        if let Some((reason, remedy)) = user_namespace_restriction().or_else(container_restriction) {
            return Error::MissingProtection {
                protection: "user namespaces with their capabilities",
                reason,
                remedy,
                weakness: None,
            };
        }
    }
    Error::Setup { step, source }
}

fn explain_seccomp(source: Errno) -> Error {
    if source == BPF_MEMORY_EXHAUSTED {
        return Error::ResourceExhausted {
            resource: "memory for compiled BPF programs, which seccomp filters need",
            remedy: "end programs that have many seccomp or socket filters, or raise the limit: `sudo sysctl net.core.bpf_jit_limit=BYTES`".into(),
        };
    }
    if source == Errno::BUSY {
        return Error::MissingProtection {
            protection: "a seccomp listener for the sandbox",
            reason: "another process already has a seccomp listener for ringfence; some container managers intercept system calls this way".into(),
            remedy: "switch off the interception of system calls for this container, or run ringfence outside of it".into(),
            weakness: None,
        };
    }
    Error::MissingProtection {
        protection: "seccomp filters",
        reason: format!("the kernel refused the filter ({source})"),
        remedy: "use a kernel with CONFIG_SECCOMP_FILTER=y, and no other filter that forbids seccomp(2)".into(),
        weakness: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhausted_bpf_memory_is_not_a_missing_protection() {
        let error = explain_step("install the seccomp filter".into(), Errno::from_raw_os_error(524));
        assert_eq!(
            error.to_string(),
            "the host has run out of memory for compiled BPF programs, which seccomp filters need"
        );
        assert!(error.hints()[0].contains("net.core.bpf_jit_limit"));
        let error = explain_step("install the seccomp filter".into(), Errno::INVAL);
        assert!(error.to_string().starts_with("this host lacks seccomp filters"));
        let error = explain_step("install the seccomp filter".into(), Errno::BUSY);
        assert!(error.to_string().starts_with("this host lacks a seccomp listener"));
    }
}
