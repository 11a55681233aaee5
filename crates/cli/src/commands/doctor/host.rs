//! What can be known about the host's protections without starting a sandbox.

use std::fs;

use ringfence_core::{Language, PATH};
use ringfence_sandbox::cgroup::{CgroupParent, Controller};
use ringfence_sandbox::{IdMapping, MAX_OPEN_FILES_WITH_SHARED_UID, SupplementaryGroups, host};

use super::{Check, State};

/// The oldest kernel that has all that is used: Landlock came with 5.13, counting processes in a user
/// namespace with 5.14.
const OLDEST_KERNEL: (u32, u32) = (5, 14);

pub(super) fn checks() -> Vec<Check> {
    let mut checks = vec![kernel(), user_namespaces(), namespaces(), private_proc(), seccomp(), landlock(), own_uid()];
    checks.extend(limits());
    checks.extend(Language::ALL.map(interpreter));
    checks
}

fn kernel() -> Check {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = numbers.next().zip(numbers.next());
    if version.is_some_and(|version| version < OLDEST_KERNEL) {
        let remedy = format!("use Linux {}.{} or later", OLDEST_KERNEL.0, OLDEST_KERNEL.1);
        return Check::lacking("kernel", State::Missing, release, remedy);
    }
    Check::ok("kernel", format!("Linux {release}"))
}

fn user_namespaces() -> Check {
    match host::user_namespace_restriction() {
        Some((why, remedy)) => Check::lacking("user namespaces", State::Missing, why, remedy),
        None => Check::ok("user namespaces", "nothing is known against them"),
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
    let detail = format!("the kernel has none for {}", missing.join(", "));
    Check::lacking("other namespaces", State::Missing, detail, "use a kernel with all namespaces built in")
}

/// A user namespace may have a /proc of its own only where no part of the existing one is covered.
fn private_proc() -> Check {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let point = |line: &str| line.split(' ').nth(4).map(ToOwned::to_owned);
    let covered: Vec<String> = mounts.lines().filter_map(point).filter(|point| point.starts_with("/proc/")).collect();
    // A mount on an empty directory made for it, as binfmt_misc's, covers nothing.
    let covered: Vec<String> = covered.into_iter().filter(|point| !point.ends_with("/binfmt_misc")).collect();
    if covered.is_empty() {
        return Check::ok("private /proc", "no part of /proc is covered");
    }
    let detail = format!("{} parts of /proc are covered, such as {}", covered.len(), covered[0]);
    let remedy = "in a container: start it with `--security-opt systempaths=unconfined`";
    // Root of the host may mount one all the same; the self-test tells.
    let state = if rustix::process::geteuid().is_root() { State::Weaker } else { State::Missing };
    Check::lacking("private /proc", state, detail, remedy)
}

fn seccomp() -> Check {
    let actions = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    let has = |wanted: &str| actions.split_whitespace().any(|action| action == wanted);
    if has("errno") && has("user_notif") {
        return Check::ok("seccomp", "filters are available");
    }
    Check::lacking("seccomp", State::Missing, "no filters", "use a kernel with CONFIG_SECCOMP_FILTER=y")
}

fn landlock() -> Check {
    match host::landlock_abi() {
        Some(1) => Check::lacking(
            "Landlock",
            State::Weaker,
            "ABI 1: files cannot be moved from one directory to another (EXDEV); signals and abstract sockets are kept apart by the namespaces alone",
            "Linux 5.19 or later has ABI 2, 6.12 or later ABI 6",
        ),
        Some(abi @ 2..6) => Check::lacking(
            "Landlock",
            State::Weaker,
            format!("ABI {abi}: files, but not signals and abstract sockets; the namespaces keep those apart"),
            "Linux 6.12 or later has ABI 6",
        ),
        Some(abi) => Check::ok("Landlock", format!("ABI {abi}")),
        None => Check::lacking("Landlock", State::Missing, "absent or switched off", host::LANDLOCK_REMEDY),
    }
}

fn own_uid() -> Check {
    match IdMapping::detect() {
        Err(error) => {
            let detail = format!("it cannot be seen whether there is one: {error}");
            Check::lacking("uid of its own", State::Missing, detail, host::SUBUID_REMEDY)
        }
        Ok(IdMapping::Dedicated { .. }) => Check::ok("uid of its own", "each sandbox has a uid that nobody else has"),
        Ok(IdMapping::Subordinate { .. }) => {
            Check::ok("uid of its own", "one of your subordinate ids; your own where a volume is read-write")
        }
        Ok(IdMapping::SharedWithUser { reason: why, groups }) => {
            let groups = match groups {
                SupplementaryGroups::Retained => "keep your supplementary groups",
                SupplementaryGroups::MapDirectly | SupplementaryGroups::ByHelper { .. } => {
                    "leave your supplementary groups if the kernel allows it"
                }
            };
            let detail = format!(
                "{why}: sandboxes run with your own uid, inside their namespaces, {groups}, \
                 and have at most {MAX_OPEN_FILES_WITH_SHARED_UID} open files a process"
            );
            Check::lacking("uid of its own", State::Weaker, detail, host::SUBUID_REMEDY)
        }
    }
}

fn limits() -> Vec<Check> {
    let place = CgroupParent::find();
    let check = |(controller, name, instead): (Controller, &'static str, &str)| match &place {
        Ok(found) if found.has_controller(controller) => {
            let version = if matches!(found, CgroupParent::V2 { .. }) { "v2" } else { "v1" };
            Check::ok(name, format!("by cgroup {version}"))
        }
        other => {
            let default = "the controller is not to be had".to_owned();
            let why = other.as_ref().err().map_or(default, ToString::to_string);
            Check::lacking(name, State::Weaker, format!("{instead} ({why})"), host::CGROUP_REMEDY)
        }
    };
    [
        (Controller::Memory, "memory limit", "by RLIMIT_DATA and a watchdog"),
        (Controller::Pids, "process limit", "by RLIMIT_NPROC"),
        (Controller::Cpu, "CPU limit", "by affinity, rounded up to whole CPUs"),
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
            format!("no {program} on this host"),
            format!("install {program} to use this template"),
        ),
    }
}
