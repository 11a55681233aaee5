//! Where this process may make control groups: found from `/proc/self/cgroup` and
//! `/proc/self/mountinfo`, for v1, v2 and the two beside each other.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::error::Error;
use ringfence_core::Limits;

/// What the kernel can count and bound for a group.
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

/// A place for groups, and the controllers that it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CgroupParent {
    /// One directory a controller.
    V1 { parents: Vec<(Controller, PathBuf)> },
    /// One directory for all of them.
    V2 { parent: PathBuf, controllers: Vec<Controller> },
}

/// Why no place for groups was found.
#[derive(Debug, thiserror::Error)]
pub enum CgroupUnavailable {
    #[error("{0}")]
    None(String),
    /// It is not known whether there is one.
    #[error("the control groups of this process cannot be seen: {0}")]
    Unseen(std::io::Error),
}

impl CgroupParent {
    /// The best place that this process may write, or why there is none.
    pub fn find() -> Result<Self, CgroupUnavailable> {
        let read = |path: &str| {
            fs::read_to_string(path).map_err(|error| match error.kind() {
                ErrorKind::NotFound => CgroupUnavailable::None(format!("{path}: {error}")),
                _ => CgroupUnavailable::Unseen(error),
            })
        };
        Self::find_in(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?).map_err(CgroupUnavailable::None)
    }

    fn find_in(groups: &str, mounts: &str) -> Result<Self, String> {
        let v1 = find_v1(groups, mounts);
        if v1.len() == Controller::ALL.len() {
            return Ok(Self::V1 { parents: v1 });
        }
        match find_v2(groups, mounts) {
            Ok(place) => Ok(place),
            Err(_) if !v1.is_empty() => Ok(Self::V1 { parents: v1 }),
            Err(_)
                if mounts
                    .lines()
                    .filter_map(parse_mount)
                    .any(|mount| mount.kind == "cgroup" && mount.options.contains("memory")) =>
            {
                Err("no permission to make groups in the cgroup v1 hierarchies".into())
            }
            Err(why) => Err(why),
        }
    }

    pub fn has_controller(&self, controller: Controller) -> bool {
        match self {
            Self::V1 { parents } => parents.iter().any(|(found, _)| *found == controller),
            Self::V2 { controllers, .. } => controllers.contains(&controller),
        }
    }

    pub(super) fn parents(&self) -> Vec<&Path> {
        match self {
            Self::V1 { parents } => parents.iter().map(|(_, path)| path.as_path()).collect(),
            Self::V2 { parent, .. } => vec![parent],
        }
    }

    pub(super) fn index_of(&self, controller: Controller) -> Option<usize> {
        match self {
            Self::V1 { parents } => parents.iter().position(|(found, _)| *found == controller),
            Self::V2 { .. } => self.has_controller(controller).then_some(0),
        }
    }

    /// Switches the controllers on for the groups that will be made here.
    pub(super) fn prepare(&self) -> Result<(), Error> {
        match self {
            Self::V1 { .. } => Ok(()),
            Self::V2 { parent, controllers } => enable(parent, controllers),
        }
    }

    /// The files to write, for the controllers that are here.
    pub(super) fn settings(&self, limits: &Limits) -> Vec<(Controller, &'static str, String)> {
        const PERIOD_US: u32 = 100_000;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let quota_us = (limits.cpus * f64::from(PERIOD_US)).max(1000.0) as u64;
        let memory = limits.memory_bytes.to_string();
        let settings = match self {
            Self::V1 { parents } => {
                let mut settings = vec![
                    (Controller::Memory, "memory.limit_in_bytes", memory.clone()),
                    (Controller::Pids, "pids.max", limits.pids.to_string()),
                    (Controller::Cpu, "cpu.cfs_period_us", PERIOD_US.to_string()),
                    (Controller::Cpu, "cpu.cfs_quota_us", quota_us.to_string()),
                ];
                // Only where swap is accounted: memory and swap together, so that the limit cannot be
                // stretched by swapping. TCP buffers are not counted with the rest on v1.
                let tcp = (limits.memory_bytes / 4).to_string();
                for (file, value) in [("memory.memsw.limit_in_bytes", memory), ("memory.kmem.tcp.limit_in_bytes", tcp)]
                {
                    let is_there = |(controller, path): &(Controller, PathBuf)| {
                        *controller == Controller::Memory && path.join(file).exists()
                    };
                    if parents.iter().any(is_there) {
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
    let on = fs::read_to_string(&path).unwrap_or_default();
    let missing = |controller: &&Controller| !on.split_whitespace().any(|name| name == controller.name());
    let wanted: Vec<String> =
        controllers.iter().filter(missing).map(|controller| format!("+{}", controller.name())).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    fs::write(&path, wanted.join(" ")).map_err(|error| super::failed(&path, &error))
}

/// A line of mountinfo, as far as it matters here (`proc_pid_mountinfo(5)`).
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

/// The directory of the caller's group within a mount, which may show only a part of the hierarchy.
fn own_directory(mount: &Mount<'_>, group: &str) -> PathBuf {
    let below = Path::new(group).strip_prefix(mount.root).unwrap_or(Path::new(""));
    Path::new(mount.point).join(below.strip_prefix("/").unwrap_or(below))
}

fn find_v1(groups: &str, mounts: &str) -> Vec<(Controller, PathBuf)> {
    let find = |controller: Controller| {
        let group = groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let names = fields.next()?;
            names.split(',').any(|name| name == controller.name()).then(|| fields.next())?
        })?;
        let mount = mounts.lines().filter_map(parse_mount).find(|mount| {
            mount.kind == "cgroup" && mount.options.split(',').any(|option| option == controller.name())
        })?;
        let directory = own_directory(&mount, group);
        writable(&directory).then_some((controller, directory))
    };
    Controller::ALL.into_iter().filter_map(find).collect()
}

fn find_v2(groups: &str, mounts: &str) -> Result<CgroupParent, String> {
    let none = "no cgroup file system with controllers is mounted";
    let group = groups.lines().find_map(|line| line.strip_prefix("0::")).ok_or(none)?;
    let mount = mounts.lines().filter_map(parse_mount).find(|mount| mount.kind == "cgroup2").ok_or(none)?;
    let own = own_directory(&mount, group);
    let top = Path::new(mount.point);
    let mut denied = None;
    for directory in own.ancestors().take_while(|directory| directory.starts_with(top)) {
        let controllers: Vec<Controller> = {
            let names = fs::read_to_string(directory.join("cgroup.controllers")).unwrap_or_default();
            let has = |controller: &Controller| names.split_whitespace().any(|name| name == controller.name());
            Controller::ALL.into_iter().filter(has).collect()
        };
        if controllers.is_empty() {
            continue;
        }
        if !writable(directory) || !writable(&directory.join("cgroup.procs")) {
            denied.get_or_insert_with(|| directory.to_owned());
            continue;
        }
        // A group with processes of its own cannot give controllers to its children, except the root
        // of the hierarchy, which has no limits of its own to break.
        let crowded = fs::read_to_string(directory.join("cgroup.procs")).is_ok_and(|text| !text.trim().is_empty());
        if crowded && directory.join("cgroup.type").exists() {
            continue;
        }
        return Ok(CgroupParent::V2 { parent: directory.to_owned(), controllers });
    }
    Err(match denied {
        Some(directory) => format!("no permission to make groups in {}", directory.display()),
        None => none.into(),
    })
}

fn writable(path: &Path) -> bool {
    access(path, Access::WRITE_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { memory_bytes: 1 << 30, pids: 64, cpus: 1.5, open_files: 256 };

    fn file(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn v1_places_lie_below_the_callers_own_group() {
        let top = tempfile::tempdir().unwrap();
        let base = top.path().display();
        for directory in ["memory/user/a", "pids", "cpu"] {
            fs::create_dir_all(top.path().join(directory)).unwrap();
        }
        let groups = "4:memory:/user/a\n8:pids:/\n1:cpu,cpuacct:/\n0::/\n";
        let mounts = format!(
            "1 1 0:1 / {base}/memory rw - cgroup cgroup rw,memory\n\
             1 1 0:2 / {base}/pids rw - cgroup cgroup rw,pids\n\
             1 1 0:3 / {base}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        );
        let place = CgroupParent::find_in(groups, &mounts).unwrap();
        let at = |name: &str| top.path().join(name);
        let expected = vec![
            (Controller::Memory, at("memory/user/a")),
            (Controller::Pids, at("pids")),
            (Controller::Cpu, at("cpu")),
        ];
        assert_eq!(place, CgroupParent::V1 { parents: expected });
        let settings = place.settings(&LIMITS);
        assert!(settings.contains(&(Controller::Cpu, "cpu.cfs_quota_us", "150000".into())));
        assert!(settings.contains(&(Controller::Memory, "memory.limit_in_bytes", "1073741824".into())));
    }

    #[test]
    fn v2_goes_up_to_the_first_group_without_processes_of_its_own() {
        let top = tempfile::tempdir().unwrap();
        let service = top.path().join("user.slice/user@1.service");
        let scope = service.join("app.slice/shell.scope");
        for (directory, processes) in [(&scope, "42\n"), (&service, "")] {
            file(&directory.join("cgroup.controllers"), "memory pids\n");
            file(&directory.join("cgroup.procs"), processes);
            file(&directory.join("cgroup.type"), "domain\n");
        }
        let groups = "0::/user.slice/user@1.service/app.slice/shell.scope\n";
        let mounts = format!("1 1 0:1 / {} rw - cgroup2 cgroup2 rw\n", top.path().display());
        let place = CgroupParent::find_in(groups, &mounts).unwrap();
        let controllers = vec![Controller::Memory, Controller::Pids];
        assert_eq!(place, CgroupParent::V2 { parent: service, controllers });
        let names: Vec<_> = place.settings(&LIMITS).into_iter().map(|(_, file, _)| file).collect();
        assert_eq!(names, ["memory.max", "memory.swap.max", "pids.max"]);
    }

    #[test]
    fn no_controllers_is_said_so() {
        let top = tempfile::tempdir().unwrap();
        let mounts = format!("1 1 0:1 / {} rw - cgroup2 cgroup2 rw\n", top.path().display());
        assert!(CgroupParent::find_in("0::/\n", &mounts).unwrap_err().contains("no cgroup"));
        assert!(CgroupParent::find_in("", "").unwrap_err().contains("no cgroup"));
    }
}
