//! Checks of the host that need no sandbox.

use std::fs;

use ringfence_core::{Language, PATH};
use ringfence_sandbox::cgroup::{CgroupParent, Controller};
use ringfence_sandbox::{IdMapping, MAX_OPEN_FILES_WITH_SHARED_UID, SupplementaryGroups, host};

use super::{Check, State};

/// The oldest supported kernel: Landlock came with 5.13, process limits per user namespace with 5.14.
const MIN_KERNEL: (u32, u32) = (5, 14);

/// Name of the check of the sandboxes' uid.
const DEDICATED_UID: &str = "dedicated uid";

pub(super) fn checks() -> Vec<Check> {
    let mut checks =
        vec![kernel(), user_namespaces(), namespaces(), private_proc(), seccomp(), landlock(), dedicated_uid()];
    checks.extend(limits());
    checks.extend(Language::ALL.map(interpreter));
    checks
}

fn kernel() -> Check {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = numbers.next().zip(numbers.next());
    if version.is_some_and(|version| version < MIN_KERNEL) {
        let remedy = format!("use Linux {}.{} or later", MIN_KERNEL.0, MIN_KERNEL.1);
        return Check::lacking("kernel", State::Missing, release, remedy);
    }
    Check::ok("kernel", format!("Linux {release}"))
}

fn user_namespaces() -> Check {
    match host::user_namespace_restriction() {
        Some((reason, remedy)) => Check::lacking("user namespaces", State::Missing, reason, remedy),
        None => Check::ok("user namespaces", "no restriction found"),
    }
}

fn namespaces() -> Check {
    let missing: Vec<&str> = ["mnt", "pid", "net", "ipc", "uts", "cgroup"]
        .into_iter()
        .filter(|name| !fs::exists(format!("/proc/self/ns/{name}")).unwrap_or(false))
        .collect();
    if missing.is_empty() {
        return Check::ok("other namespaces", "mount, PID, network, IPC, UTS and cgroup");
    }
    let detail = format!("the kernel lacks {}", missing.join(", "));
    Check::lacking("other namespaces", State::Missing, detail, "use a kernel with all namespaces built in")
}

/// A new /proc can be mounted in a user namespace only if no part of the existing one is overmounted.
fn private_proc() -> Check {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let point = |line: &str| line.split(' ').nth(4).map(ToOwned::to_owned);
    let overmounted: Vec<String> =
        mounts.lines().filter_map(point).filter(|point| point.starts_with("/proc/")).collect();
    // binfmt_misc is mounted on an empty directory made for it, which the kernel allows.
    let overmounted: Vec<String> = overmounted.into_iter().filter(|point| !point.ends_with("/binfmt_misc")).collect();
    if overmounted.is_empty() {
        return Check::ok("private /proc", "no part of /proc is overmounted");
    }
    let detail = format!("{} parts of /proc are overmounted, for example {}", overmounted.len(), overmounted[0]);
    let remedy = "if this is a container, start it with `--security-opt systempaths=unconfined`";
    // The host's root user may still be able to mount it; the self-test shows that.
    let state = if rustix::process::geteuid().is_root() { State::Weaker } else { State::Missing };
    Check::lacking("private /proc", state, detail, remedy)
}

fn seccomp() -> Check {
    let actions = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    let has = |name: &str| actions.split_whitespace().any(|action| action == name);
    if has("errno") && has("user_notif") {
        return Check::ok("seccomp", "filters are supported");
    }
    Check::lacking("seccomp", State::Missing, "filters are not supported", "use a kernel with CONFIG_SECCOMP_FILTER=y")
}

fn landlock() -> Check {
    match host::landlock_abi() {
        Some(1) => Check::lacking(
            "Landlock",
            State::Weaker,
            "ABI 1: files cannot be moved between directories (EXDEV); signals and abstract sockets are isolated only by namespaces",
            "use Linux 5.19 or later for ABI 2, 6.12 or later for ABI 6",
        ),
        Some(abi @ 2..6) => Check::lacking(
            "Landlock",
            State::Weaker,
            format!("ABI {abi}: restricts files; signals and abstract sockets are isolated only by namespaces"),
            "use Linux 6.12 or later for ABI 6",
        ),
        Some(abi) => Check::ok("Landlock", format!("ABI {abi}")),
        None => Check::lacking("Landlock", State::Missing, "not available or disabled", host::LANDLOCK_REMEDY),
    }
}

fn dedicated_uid() -> Check {
    match IdMapping::detect() {
        Err(error) => {
            let detail = format!("cannot determine the uid of sandboxes: {error}");
            Check::lacking(DEDICATED_UID, State::Missing, detail, host::SUBUID_REMEDY)
        }
        Ok(IdMapping::Dedicated { .. }) => Check::ok(DEDICATED_UID, "each sandbox has a uid that no other process has"),
        Ok(IdMapping::Subordinate { .. }) => {
            Check::ok(DEDICATED_UID, "one of your subordinate uids; your uid if a volume is read-write")
        }
        Ok(IdMapping::SharedWithUser { reason, groups }) => {
            let groups = match groups {
                SupplementaryGroups::Retained => "keep your supplementary groups",
                SupplementaryGroups::MapDirectly | SupplementaryGroups::ByHelper { .. } => {
                    "drop your supplementary groups if the kernel allows it"
                }
            };
            let detail = format!(
                "{reason}: sandboxes run with your uid in their namespaces, {groups}, \
                 and have at most {MAX_OPEN_FILES_WITH_SHARED_UID} open files per process"
            );
            Check::lacking(DEDICATED_UID, State::Weaker, detail, host::SUBUID_REMEDY)
        }
    }
}

fn limits() -> Vec<Check> {
    let parent = CgroupParent::find();
    let check = |(controller, name, replacement): (Controller, &'static str, &str)| match &parent {
        Ok(found) if found.has_controller(controller) => {
            let version = if matches!(found, CgroupParent::V2 { .. }) { "v2" } else { "v1" };
            Check::ok(name, format!("by cgroup {version}"))
        }
        other => {
            let default = "the cgroup controller is not available".to_owned();
            let reason = other.as_ref().err().map_or(default, ToString::to_string);
            Check::lacking(name, State::Weaker, format!("{replacement} ({reason})"), host::CGROUP_REMEDY)
        }
    };
    [
        (Controller::Memory, "memory limit", "by RLIMIT_DATA and periodic checks"),
        (Controller::Pids, "process limit", "by RLIMIT_NPROC"),
        (Controller::Cpu, "CPU limit", "by CPU affinity, rounded up to whole CPUs"),
    ]
    .map(check)
    .into()
}

fn interpreter(language: Language) -> Check {
    let (name, program) = match language {
        Language::Python => ("template python", "python3"),
        Language::Node => ("template node", "node"),
        Language::Bash => ("template bash", "bash"),
    };
    let directory = PATH.split(':').find(|directory| fs::exists(format!("{directory}/{program}")).unwrap_or(false));
    if let Some(directory) = directory {
        return Check::ok(name, format!("{directory}/{program}"));
    }
    match ringfence_backend::interpreter::find(program) {
        Some(found) => Check::ok(name, format!("{}/{program}", found.directory.display())),
        None => Check::lacking(
            name,
            State::Weaker,
            format!("{program} is not installed"),
            format!("install {program} to use this template"),
        ),
    }
}
