//! The cgroups of a sandbox, which limit memory, processes and CPU time of all its processes together. Supports cgroup
//! v1 and v2.
//!
//! A [`Cgroup`] is removed on drop. Its directories are locked while its owner lives, so that a later start recognizes
//! and removes those of killed owners. If no cgroup can be made, this module returns the reason; `launch` decides
//! whether that is acceptable.

mod memory_counters;
mod parent;

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

pub use memory_counters::MemoryCounters;
pub use parent::{CgroupParent, CgroupUnavailable, Controller};

use crate::error::{Error, errno_of};
use ringfence_core::Limits;

/// The prefix of all cgroup names of ringfence, which are siblings.
const PREFIX: &str = "ringfence-";

/// The cgroups of a sandbox: one directory per hierarchy.
#[derive(Debug)]
pub struct Cgroup {
    directories: Vec<Directory>,
    parent: CgroupParent,
}

#[derive(Debug)]
struct Directory {
    path: PathBuf,
    lock: OwnedFd,
}

impl Cgroup {
    /// Makes cgroups in `parent`, and sets their limits.
    pub fn create(parent: &CgroupParent, limits: &Limits) -> Result<Self, Error> {
        // Another process can remove a directory as stale between its creation and its lock.
        for _ in 0..3 {
            match Self::try_create(parent, limits) {
                Err(Error::Setup { source: Errno::NOENT | Errno::NODEV, .. }) => {}
                result => return result,
            }
        }
        Self::try_create(parent, limits)
    }

    fn try_create(parent: &CgroupParent, limits: &Limits) -> Result<Self, Error> {
        let mut cgroup = Self { directories: Vec::new(), parent: parent.clone() };
        let name = unique_name();
        parent.enable_controllers()?;
        for directory in parent.directories() {
            let path = directory.join(&name);
            fs::create_dir(&path).map_err(|error| failed(&path, &error))?;
            let lock = rustix::fs::open(&path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .and_then(|fd| flock(&fd, FlockOperation::LockShared).map(|()| fd))
                .map_err(Error::setup(format!("lock cgroup {}", path.display())))?;
            cgroup.directories.push(Directory { path, lock });
        }
        for (controller, file, value) in parent.settings(limits) {
            cgroup.write(controller, file, &value)?;
        }
        Ok(cgroup)
    }

    fn directory(&self, controller: Controller) -> Option<&Directory> {
        self.directories.get(self.parent.index_of(controller)?)
    }

    fn write(&self, controller: Controller, file: &str, value: &str) -> Result<(), Error> {
        let Some(directory) = self.directory(controller) else { return Ok(()) };
        let path = directory.path.join(file);
        // If the kernel does not account swap, this file does not exist.
        if file == parent::SWAP_V2 && !path.exists() {
            return Ok(());
        }
        // Without O_CREAT, for which cgroup file systems return a misleading error.
        fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| file.write_all(value.as_bytes()))
            .map_err(|error| failed(&path, &error))
    }

    /// The v2 directory into which a process can be cloned; `None` on v1.
    pub(crate) fn clone_target(&self) -> Option<BorrowedFd<'_>> {
        match self.parent {
            CgroupParent::V2 { .. } => self.directories.first().map(|directory| directory.lock.as_fd()),
            CgroupParent::V1 { .. } => None,
        }
    }

    /// Opens the v1 files to which a single-threaded process writes `0` to join; empty on v2.
    ///
    /// A thread joins without a global lock, while moving another process waits for an RCU grace period: 11 ms on an
    /// idle host.
    pub(crate) fn v1_task_files(&self) -> Result<Vec<File>, Error> {
        if matches!(self.parent, CgroupParent::V2 { .. }) {
            return Ok(Vec::new());
        }
        let open = |directory: &Directory| {
            let path = directory.path.join("tasks");
            fs::OpenOptions::new().write(true).open(&path).map_err(|error| failed(&path, &error))
        };
        self.directories.iter().map(open).collect()
    }

    /// Removes the cgroups that killed owners have left in the same parent.
    pub fn remove_stale_siblings(&self) {
        for directory in &self.directories {
            directory.path.parent().map(remove_stale);
        }
    }

    /// Opens the counters of the memory controller; `None` without a memory controller.
    pub fn memory_counters(&self) -> Option<MemoryCounters> {
        let (events, usage) = match self.parent {
            CgroupParent::V1 { .. } => ("memory.oom_control", "memory.usage_in_bytes"),
            CgroupParent::V2 { .. } => ("memory.events", "memory.current"),
        };
        let path = &self.directory(Controller::Memory)?.path;
        Some(MemoryCounters::new(File::open(path.join(events)).ok()?, File::open(path.join(usage)).ok()?))
    }

    /// The number of processes that the kernel has killed because the memory limit was reached.
    pub fn memory_kills(&self) -> u64 {
        self.memory_counters().map_or(0, |counters| counters.kills())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for directory in &self.directories {
            remove(&directory.path);
        }
    }
}

fn remove_stale(parent: &Path) {
    /// Limits the cost on a host with very many sandboxes.
    const MAX_DIRECTORIES: usize = 256;
    let Ok(entries) = fs::read_dir(parent) else { return };
    let has_prefix = |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes());
    for entry in entries.flatten().filter(has_prefix).take(MAX_DIRECTORIES) {
        let opened = rustix::fs::open(entry.path(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let Ok(lock) = opened else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = fs::remove_dir(entry.path());
        }
        // Not before the removal, so that no other process can lock it in between.
        drop(lock);
    }
}

/// Removes a cgroup. Its last processes may still be ending, and the kernel returns EBUSY until they have.
fn remove(path: &Path) {
    const MAX_ATTEMPTS: u32 = 200;
    let _ = fs::write(path.join("cgroup.kill"), "1");
    for _ in 0..MAX_ATTEMPTS {
        match fs::remove_dir(path) {
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            _ => return,
        }
    }
}

fn unique_name() -> String {
    let mut random = [0; 16];
    // Fails early in the boot; then the process id alone makes the name unique among owners.
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::NONBLOCK);
    format!("{PREFIX}{}-{:024x}", std::process::id(), u128::from_ne_bytes(random) >> 32)
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    Error::Setup { step: format!("set up cgroup {}", path.display()), source: errno_of(error) }
}

#[cfg(test)]
mod tests {
    use ringfence_testkit::skip;
    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;
    use crate::sys;
    use crate::sys::Fork;

    /// Runs on any host with a writable v2 hierarchy, even if all controllers belong to v1.
    #[test]
    fn process_is_cloned_into_its_v2_cgroup_and_killed_with_it() {
        let test = "cgroup::process_is_cloned_into_its_v2_cgroup_and_killed_with_it";
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let find = |line: &str| line.contains(" - cgroup2 ").then(|| line.split(' ').nth(4).map(PathBuf::from))?;
        let Some(parent) = mounts.lines().find_map(find).filter(|path| fs::metadata(path.join("cgroup.procs")).is_ok())
        else {
            return skip(test, "no cgroup v2 is mounted");
        };
        let limits = Limits { memory_bytes: 1 << 30, pids: 8, cpus: 1.0, open_files: 64 };
        let Ok(cgroup) = Cgroup::create(&CgroupParent::V2 { directory: parent, controllers: Vec::new() }, &limits)
        else {
            return skip(test, "no permission to create cgroups in cgroup v2");
        };
        let Ok(Fork::Parent { pid, pidfd }) =
            sys::clone_into(0, cgroup.clone_target(), sys::Parent::This).map(|fork| match fork {
                // The test has other threads, so their locks may be held here: only spin.
                Fork::Child => loop {
                    std::hint::spin_loop();
                },
                parent @ Fork::Parent { .. } => parent,
            })
        else {
            panic!("the process was not cloned");
        };
        let membership = fs::read_to_string(format!("/proc/{}/cgroup", pid.as_raw_nonzero())).unwrap();
        let directory = cgroup.directories[0].path.clone();
        let name = directory.file_name().unwrap().to_str().unwrap();
        assert!(membership.lines().any(|line| line.starts_with("0::") && line.ends_with(name)), "{membership}");
        let reaper = std::thread::spawn(move || waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED));
        drop(cgroup);
        assert!(reaper.join().unwrap().unwrap().unwrap().killed());
        assert!(!directory.exists());
    }
}
