//! Finds the directories in which this process may make cgroups, from `/proc/self/cgroup` and `/proc/self/mountinfo`.
//! Supports v1, v2 and hosts with both.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::error::Error;
use ringfence_core::Limits;

/// A resource that a cgroup limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controller {
    Memory,
    Pids,
    Cpu,
}

impl Controller {
    pub const ALL: [Self; 3] = [Self::Memory, Self::Pids, Self::Cpu];

    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
        }
    }
}

pub(super) const SWAP_V2: &str = "memory.swap.max";

/// The directories in which cgroups are made, and their controllers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CgroupParent {
    /// One directory per controller.
    V1 { directories: Vec<(Controller, PathBuf)> },
    /// One directory for all controllers.
    V2 { directory: PathBuf, controllers: Vec<Controller> },
}

/// The reason why no cgroups can be made.
#[derive(Debug, thiserror::Error)]
pub enum CgroupUnavailable {
    #[error("{0}")]
    Missing(String),
    /// Whether cgroups can be made is unknown.
    #[error("the cgroups of this process cannot be read: {0}")]
    Unreadable(std::io::Error),
}

impl CgroupParent {
    /// Finds the best parent that this process may write.
    pub fn find() -> Result<Self, CgroupUnavailable> {
        let read = |path: &str| {
            fs::read_to_string(path).map_err(|error| match error.kind() {
                ErrorKind::NotFound => CgroupUnavailable::Missing(format!("{path}: {error}")),
                _ => CgroupUnavailable::Unreadable(error),
            })
        };
        Self::find_in(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?).map_err(CgroupUnavailable::Missing)
    }

    fn find_in(cgroups: &str, mounts: &str) -> Result<Self, String> {
        let v1 = find_v1(cgroups, mounts);
        if v1.len() == Controller::ALL.len() {
            return Ok(Self::V1 { directories: v1 });
        }
        match find_v2(cgroups, mounts) {
            Ok(parent) => Ok(parent),
            Err(_) if !v1.is_empty() => Ok(Self::V1 { directories: v1 }),
            Err(_)
                if mounts
                    .lines()
                    .filter_map(parse_mount)
                    .any(|mount| mount.kind == "cgroup" && mount.options.contains("memory")) =>
            {
                Err("no permission to make cgroups in the cgroup v1 hierarchies".into())
            }
            Err(reason) => Err(reason),
        }
    }

    pub fn has_controller(&self, controller: Controller) -> bool {
        match self {
            Self::V1 { directories } => directories.iter().any(|(found, _)| *found == controller),
            Self::V2 { controllers, .. } => controllers.contains(&controller),
        }
    }

    pub(super) fn directories(&self) -> Vec<&Path> {
        match self {
            Self::V1 { directories } => directories.iter().map(|(_, path)| path.as_path()).collect(),
            Self::V2 { directory, .. } => vec![directory],
        }
    }

    /// The index of a controller's directory in [`Self::directories`].
    pub(super) fn index_of(&self, controller: Controller) -> Option<usize> {
        match self {
            Self::V1 { directories } => directories.iter().position(|(found, _)| *found == controller),
            Self::V2 { .. } => self.has_controller(controller).then_some(0),
        }
    }

    /// Enables the controllers for the cgroups that will be made here.
    pub(super) fn enable_controllers(&self) -> Result<(), Error> {
        match self {
            Self::V1 { .. } => Ok(()),
            Self::V2 { directory, controllers } => enable(directory, controllers),
        }
    }

    /// The files to write in a new cgroup, and their values, for the available controllers.
    pub(super) fn settings(&self, limits: &Limits) -> Vec<(Controller, &'static str, String)> {
        const PERIOD_US: u32 = 100_000;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let quota_us = (limits.cpus * f64::from(PERIOD_US)).max(1000.0) as u64;
        let memory = limits.memory_bytes.to_string();
        let settings = match self {
            Self::V1 { directories } => {
                let mut settings = vec![
                    (Controller::Memory, "memory.limit_in_bytes", memory.clone()),
                    (Controller::Pids, "pids.max", limits.pids.to_string()),
                    (Controller::Cpu, "cpu.cfs_period_us", PERIOD_US.to_string()),
                    (Controller::Cpu, "cpu.cfs_quota_us", quota_us.to_string()),
                ];
                // Both files are optional. The first exists if the kernel accounts swap, and limits memory and swap
                // together, so that swapping does not extend the limit. On v1, TCP buffers have a separate limit.
                let tcp = (limits.memory_bytes / 4).to_string();
                for (file, value) in [("memory.memsw.limit_in_bytes", memory), ("memory.kmem.tcp.limit_in_bytes", tcp)]
                {
                    let exists = |(controller, path): &(Controller, PathBuf)| {
                        *controller == Controller::Memory && path.join(file).exists()
                    };
                    if directories.iter().any(exists) {
                        settings.push((Controller::Memory, file, value));
                    }
                }
                settings
            }
            Self::V2 { .. } => vec![
                (Controller::Memory, "memory.max", memory),
                (Controller::Memory, SWAP_V2, "0".into()),
                (Controller::Pids, "pids.max", limits.pids.to_string()),
                (Controller::Cpu, "cpu.max", format!("{quota_us} {PERIOD_US}")),
            ],
        };
        settings.into_iter().filter(|(controller, ..)| self.has_controller(*controller)).collect()
    }
}

fn enable(directory: &Path, controllers: &[Controller]) -> Result<(), Error> {
    let path = directory.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&path).unwrap_or_default();
    let is_missing = |controller: &&Controller| !enabled.split_whitespace().any(|name| name == controller.name());
    let missing: Vec<String> =
        controllers.iter().filter(is_missing).map(|controller| format!("+{}", controller.name())).collect();
    if missing.is_empty() {
        return Ok(());
    }
    fs::write(&path, missing.join(" ")).map_err(|error| super::failed(&path, &error))
}

/// The fields of a line of mountinfo that are used here (`proc_pid_mountinfo(5)`).
struct Mount<'a> {
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

fn parse_mount(line: &str) -> Option<Mount<'_>> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let mut right = right.split(' ');
    Some(Mount { root: left.next()?, point: left.next()?, kind: right.next()?, options: right.nth(1)? })
}

/// The directory of this process's cgroup in a mount, which may show only a part of the hierarchy.
fn directory_of(mount: &Mount<'_>, cgroup: &str) -> PathBuf {
    let below = Path::new(cgroup).strip_prefix(mount.root).unwrap_or(Path::new(""));
    Path::new(mount.point).join(below.strip_prefix("/").unwrap_or(below))
}

fn find_v1(cgroups: &str, mounts: &str) -> Vec<(Controller, PathBuf)> {
    let find = |controller: Controller| {
        let cgroup = cgroups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let names = fields.next()?;
            names.split(',').any(|name| name == controller.name()).then(|| fields.next())?
        })?;
        let mount = mounts.lines().filter_map(parse_mount).find(|mount| {
            mount.kind == "cgroup" && mount.options.split(',').any(|option| option == controller.name())
        })?;
        let directory = directory_of(&mount, cgroup);
        is_writable(&directory).then_some((controller, directory))
    };
    Controller::ALL.into_iter().filter_map(find).collect()
}

fn find_v2(cgroups: &str, mounts: &str) -> Result<CgroupParent, String> {
    let none = "no cgroup file system with controllers is mounted";
    let cgroup = cgroups.lines().find_map(|line| line.strip_prefix("0::")).ok_or(none)?;
    let mount = mounts.lines().filter_map(parse_mount).find(|mount| mount.kind == "cgroup2").ok_or(none)?;
    let current = directory_of(&mount, cgroup);
    let top = Path::new(mount.point);
    let mut denied = None;
    for directory in current.ancestors().take_while(|directory| directory.starts_with(top)) {
        let controllers: Vec<Controller> = {
            let names = fs::read_to_string(directory.join("cgroup.controllers")).unwrap_or_default();
            let has = |controller: &Controller| names.split_whitespace().any(|name| name == controller.name());
            Controller::ALL.into_iter().filter(has).collect()
        };
        if controllers.is_empty() {
            continue;
        }
        if !is_writable(directory) || !is_writable(&directory.join("cgroup.procs")) {
            denied.get_or_insert_with(|| directory.to_owned());
            continue;
        }
        // A cgroup that contains processes cannot enable controllers for its children, except the root of the
        // hierarchy, which has no `cgroup.type`.
        let has_processes =
            fs::read_to_string(directory.join("cgroup.procs")).is_ok_and(|text| !text.trim().is_empty());
        if has_processes && directory.join("cgroup.type").exists() {
            continue;
        }
        return Ok(CgroupParent::V2 { directory: directory.to_owned(), controllers });
    }
    Err(match denied {
        Some(directory) => format!("no permission to make cgroups in {}", directory.display()),
        None => none.into(),
    })
}

fn is_writable(path: &Path) -> bool {
    access(path, Access::WRITE_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { memory_bytes: 1 << 30, pids: 64, cpus: 1.5, open_files: 256 };

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn v1_cgroups_are_made_in_the_cgroups_of_this_process() {
        let top = tempfile::tempdir().unwrap();
        let base = top.path().display();
        for directory in ["memory/user/a", "pids", "cpu"] {
            fs::create_dir_all(top.path().join(directory)).unwrap();
        }
        let cgroups = "4:memory:/user/a\n8:pids:/\n1:cpu,cpuacct:/\n0::/\n";
        let mounts = format!(
            "1 1 0:1 / {base}/memory rw - cgroup cgroup rw,memory\n\
             1 1 0:2 / {base}/pids rw - cgroup cgroup rw,pids\n\
             1 1 0:3 / {base}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        );
        let parent = CgroupParent::find_in(cgroups, &mounts).unwrap();
        let at = |name: &str| top.path().join(name);
        let expected = vec![
            (Controller::Memory, at("memory/user/a")),
            (Controller::Pids, at("pids")),
            (Controller::Cpu, at("cpu")),
        ];
        assert_eq!(parent, CgroupParent::V1 { directories: expected });
        let settings = parent.settings(&LIMITS);
        assert!(settings.contains(&(Controller::Cpu, "cpu.cfs_quota_us", "150000".into())));
        assert!(settings.contains(&(Controller::Memory, "memory.limit_in_bytes", "1073741824".into())));
    }

    #[test]
    fn v2_parent_is_the_nearest_ancestor_without_processes() {
        let top = tempfile::tempdir().unwrap();
        let service = top.path().join("user.slice/user@1.service");
        let scope = service.join("app.slice/shell.scope");
        for (directory, processes) in [(&scope, "42\n"), (&service, "")] {
            write(&directory.join("cgroup.controllers"), "memory pids\n");
            write(&directory.join("cgroup.procs"), processes);
            write(&directory.join("cgroup.type"), "domain\n");
        }
        let cgroups = "0::/user.slice/user@1.service/app.slice/shell.scope\n";
        let mounts = format!("1 1 0:1 / {} rw - cgroup2 cgroup2 rw\n", top.path().display());
        let parent = CgroupParent::find_in(cgroups, &mounts).unwrap();
        let controllers = vec![Controller::Memory, Controller::Pids];
        assert_eq!(parent, CgroupParent::V2 { directory: service, controllers });
        let names: Vec<_> = parent.settings(&LIMITS).into_iter().map(|(_, file, _)| file).collect();
        assert_eq!(names, ["memory.max", "memory.swap.max", "pids.max"]);
    }

    #[test]
    fn missing_controllers_are_reported() {
        let top = tempfile::tempdir().unwrap();
        let mounts = format!("1 1 0:1 / {} rw - cgroup2 cgroup2 rw\n", top.path().display());
        assert!(CgroupParent::find_in("0::/\n", &mounts).unwrap_err().contains("no cgroup"));
        assert!(CgroupParent::find_in("", "").unwrap_err().contains("no cgroup"));
    }
}
