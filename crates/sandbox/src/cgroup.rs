//! The sandbox's control groups: memory, processes and CPU time, counted by the kernel for all of its
//! processes together, on cgroup v1 and v2.
//!
//! A group is a guard: dropped, it is removed. Its directory is locked while its owner lives, so that
//! what a killed owner left behind is told from what is in use, and swept by a later start.
//! Where no group can be made, the reason is given; nothing here decides whether that is acceptable.

mod gauge;
mod place;

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

pub use gauge::MemoryGauge;
pub use place::{Controller, CgroupUnavailable, CgroupParent};

use crate::error::Error;
use ringfence_core::Limits;

/// How the names of all groups of ringfence begin; they lie beside each other.
const PREFIX: &str = "ringfence-";

/// A sandbox's groups: one directory a hierarchy.
#[derive(Debug)]
pub struct Cgroup {
    directories: Vec<Directory>,
    place: CgroupParent,
}

#[derive(Debug)]
struct Directory {
    path: PathBuf,
    locked: OwnedFd,
}

impl Cgroup {
    /// Makes and limits a group in `place`.
    pub fn create(place: &CgroupParent, limits: &Limits) -> Result<Self, Error> {
        // A sweep by another process can take a directory between its creation and its lock.
        for _ in 0..3 {
            match Self::try_create(place, limits) {
                Err(Error::Setup { source: Errno::NOENT | Errno::NODEV, .. }) => {}
                result => return result,
            }
        }
        Self::try_create(place, limits)
    }

    fn try_create(place: &CgroupParent, limits: &Limits) -> Result<Self, Error> {
        let mut group = Self { directories: Vec::new(), place: place.clone() };
        let name = unique_name();
        place.prepare()?;
        for parent in place.parents() {
            let path = parent.join(&name);
            fs::create_dir(&path).map_err(|error| failed(&path, &error))?;
            let locked = rustix::fs::open(&path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .and_then(|fd| flock(&fd, FlockOperation::LockShared).map(|()| fd))
                .map_err(Error::setup(format!("lock cgroup {}", path.display())))?;
            group.directories.push(Directory { path, locked });
        }
        for (controller, file, value) in place.settings(limits) {
            group.write(controller, file, &value)?;
        }
        Ok(group)
    }

    fn directory(&self, controller: Controller) -> Option<&Directory> {
        self.directories.get(self.place.index_of(controller)?)
    }

    fn write(&self, controller: Controller, file: &str, value: &str) -> Result<(), Error> {
        let Some(directory) = self.directory(controller) else { return Ok(()) };
        let path = directory.path.join(file);
        // Where the kernel does not account swap there is no such file, and no swap to limit.
        if file == place::SWAP_V2 && !path.exists() {
            return Ok(());
        }
        // Without O_CREAT, which cgroup file systems refuse with a misleading error.
        fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| file.write_all(value.as_bytes()))
            .map_err(|error| failed(&path, &error))
    }

    /// The v2 group that a child can be born in.
    pub(crate) fn birth_place(&self) -> Option<BorrowedFd<'_>> {
        match self.place {
            CgroupParent::V2 { .. } => self.directories.first().map(|directory| directory.locked.as_fd()),
            CgroupParent::V1 { .. } => None,
        }
    }

    /// The v1 files into which a single-threaded child writes `0` to move itself.
    ///
    /// Moving oneself as a thread takes no global lock, while moving another process waits for an RCU
    /// grace period: 11 ms on an idle host.
    pub(crate) fn entrances(&self) -> Result<Vec<File>, Error> {
        if matches!(self.place, CgroupParent::V2 { .. }) {
            return Ok(Vec::new());
        }
        let open = |directory: &Directory| {
            let path = directory.path.join("tasks");
            fs::OpenOptions::new().write(true).open(&path).map_err(|error| failed(&path, &error))
        };
        self.directories.iter().map(open).collect()
    }

    /// Removes what owners that were killed have left behind beside this group.
    pub fn sweep_beside(&self) {
        for directory in &self.directories {
            directory.path.parent().map(sweep);
        }
    }

    /// What it counts; `None` where it has no memory controller.
    pub fn gauge(&self) -> Option<MemoryGauge> {
        let (events, usage) = match self.place {
            CgroupParent::V1 { .. } => ("memory.oom_control", "memory.usage_in_bytes"),
            CgroupParent::V2 { .. } => ("memory.events", "memory.current"),
        };
        let path = &self.directory(Controller::Memory)?.path;
        Some(MemoryGauge::new(File::open(path.join(events)).ok()?, File::open(path.join(usage)).ok()?))
    }

    /// How many processes the kernel has killed for want of memory.
    pub fn memory_kills(&self) -> u64 {
        self.gauge().map_or(0, |gauge| gauge.kills())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for directory in &self.directories {
            remove(&directory.path);
        }
    }
}

fn sweep(parent: &Path) {
    /// A bound, so that a host with very many sandboxes does not pay for this at every start.
    const MOST: usize = 256;
    let Ok(entries) = fs::read_dir(parent) else { return };
    let ours = |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes());
    for entry in entries.flatten().filter(ours).take(MOST) {
        let opened = rustix::fs::open(entry.path(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let Ok(held) = opened else { continue };
        if flock(&held, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = fs::remove_dir(entry.path());
        }
        // Only now, so that nobody can take it for his own in between.
        drop(held);
    }
}

/// The last processes may still be on their way out: the kernel answers EBUSY until they are gone.
fn remove(path: &Path) {
    const TRIES: u32 = 200;
    let _ = fs::write(path.join("cgroup.kill"), "1");
    for _ in 0..TRIES {
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
    // Before the pool is ready there is no randomness; the process id alone still tells owners apart.
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::NONBLOCK);
    format!("{PREFIX}{}-{:024x}", std::process::id(), u128::from_ne_bytes(random) >> 32)
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    Error::Setup {
        step: format!("set up cgroup {}", path.display()),
        source: Errno::from_io_error(error).unwrap_or(Errno::IO),
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;
    use crate::sys;
    use crate::sys::Fork;

    /// On any host with a writable v2 hierarchy, even one without controllers beside v1.
    #[test]
    fn a_process_is_born_in_its_v2_group_and_killed_with_it() {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let find = |line: &str| line.contains(" - cgroup2 ").then(|| line.split(' ').nth(4).map(PathBuf::from))?;
        let Some(parent) = mounts.lines().find_map(find).filter(|path| fs::metadata(path.join("cgroup.procs")).is_ok())
        else {
            eprintln!("skipped: no cgroup v2 is mounted");
            return;
        };
        let limits = Limits { memory_bytes: 1 << 30, pids: 8, cpus: 1.0, open_files: 64 };
        let Ok(group) = Cgroup::create(&CgroupParent::V2 { parent, controllers: Vec::new() }, &limits) else {
            eprintln!("skipped: no right to make groups in cgroup v2");
            return;
        };
        let Ok(Fork::Parent { pid, pidfd }) =
            sys::clone_into(0, group.birth_place(), sys::Parent::This).map(|fork| match fork {
                // Nothing else may be done here: the test has other threads.
                Fork::Child => loop {
                    std::hint::spin_loop();
                },
                parent @ Fork::Parent { .. } => parent,
            })
        else {
            panic!("the process is not born");
        };
        let own = fs::read_to_string(format!("/proc/{}/cgroup", pid.as_raw_nonzero())).unwrap();
        let directory = group.directories[0].path.clone();
        let name = directory.file_name().unwrap().to_str().unwrap();
        assert!(own.lines().any(|line| line.starts_with("0::") && line.ends_with(name)), "{own}");
        let reaper = std::thread::spawn(move || waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED));
        drop(group);
        assert!(reaper.join().unwrap().unwrap().unwrap().killed());
        assert!(!directory.exists());
    }
}
