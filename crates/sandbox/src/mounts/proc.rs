//! The guest's `/proc`: an instance for its PID namespace, without files that describe the host.
//!
//! The kernel cannot leave out single entries (`subset=pid` leaves out all of them), so each is covered by a mount,
//! which costs about 9 µs of every start. Entries that identify the host, or show the activity of the host or of other
//! sandboxes, are covered. Entries that only root may read need no cover, because root's id is not mapped. Programs
//! size themselves by `meminfo` and `stat`, so these are replaced by files that match the sandbox's limits.

use std::fmt::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, mkdirat};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, mount_bind};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::system::sysinfo;
use rustix::thread::sched_getaffinity;
use rustix::time::{ClockId, clock_gettime};

use super::tree::{READ_ONLY, attach_trusted, set_attributes, write_file};
use crate::error::{SetupError, SetupStep};
use crate::restrictions::Restrictions;
use crate::sys::Recursive;
use ringfence_core::Limits;

/// Entries that are covered by an empty file.
const HIDDEN_FILES: [&str; 8] =
    ["cmdline", "config.gz", "diskstats", "interrupts", "kallsyms", "modules", "schedstat", "softirqs"];

/// Entries that are covered by an empty file if the guest has the uid of its user. They show the keys of all uids that
/// are mapped in the reader's user namespace, and of no others.
const HIDDEN_FILES_WITH_SHARED_UID: [&str; 2] = ["key-users", "keys"];

/// Entries that are covered by an empty directory.
const HIDDEN_DIRECTORIES: [&str; 1] = ["pressure"];

/// Covers the entries that describe the host, and mounts `proc` read-only in `root`.
///
/// The covering files are created in the root's `tmp`, over which the guest's `/tmp` is mounted later.
pub(super) fn mount(root: &OwnedFd, proc: &OwnedFd, restrictions: &Restrictions) -> super::Result {
    attach_trusted(proc.as_fd(), root, Path::new("proc")).step(|| "mount a private /proc".into())?;
    // No guest controls any part of these paths, so `mount(2)` by path is safe. With descriptors it would take three
    // system calls instead of one.
    rustix::process::fchdir(root).step(|| "enter the new root".into())?;
    let created = |result: rustix::io::Result<()>| result.step(|| "create the files that cover parts of /proc".into());
    created(write_file(root, Path::new("tmp/empty"), ""))?;
    created(mkdirat(root, "tmp/none", Mode::from_raw_mode(0o555)))?;
    for name in HIDDEN_FILES {
        cover("tmp/empty", name)?;
    }
    if restrictions.is_uid_shared {
        HIDDEN_FILES_WITH_SHARED_UID.iter().try_for_each(|name| cover("tmp/empty", name))?;
    }
    for name in HIDDEN_DIRECTORIES {
        cover("tmp/none", name)?;
    }
    let replacements = Replacements::new(&restrictions.limits).step(|| "fill a private /proc".into())?;
    for (source, name, text) in replacements.files() {
        created(write_file(root, Path::new(source), &text))?;
        cover(source, name)?;
    }
    set_attributes(proc.as_fd(), READ_ONLY | MountAttrFlags::MOUNT_ATTR_NOEXEC, Recursive::Yes)
        .step(|| "make /proc read-only".into())
}

/// Mounts a file or directory over an entry of `/proc`, if this kernel has that entry.
fn cover(source: &str, name: &str) -> Result<(), SetupError> {
    match mount_bind(source, Path::new("proc").join(name)) {
        Err(Errno::NOENT) => Ok(()),
        result => result.step(|| format!("cover /proc/{name}")),
    }
}

/// The values in the files that replace entries of `/proc`.
struct Replacements {
    memory_kib: u64,
    cpus: u32,
    boot_time: i64,
    boot_id: [u8; 16],
}

impl Replacements {
    fn new(limits: &Limits) -> rustix::io::Result<Self> {
        let host = sysinfo();
        #[allow(clippy::useless_conversion)] // 32 bits wide on some architectures
        let host_memory = u64::from(host.totalram).saturating_mul(host.mem_unit.into());
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let allowed_cpus = limits.cpus.ceil().max(1.0) as u32;
        let mut boot_id = [0; 16];
        // Not a secret; it only has to differ from that of the host and of other sandboxes.
        getrandom(&mut boot_id, GetRandomFlags::empty())?;
        Ok(Self {
            memory_kib: limits.memory_bytes.min(host_memory) / 1024,
            cpus: sched_getaffinity(None)?.count().min(allowed_cpus),
            boot_time: clock_gettime(ClockId::Realtime).tv_sec - clock_gettime(ClockId::Boottime).tv_sec,
            boot_id,
        })
    }

    /// Returns the path of each file, the entry that it covers, and its content.
    fn files(&self) -> [(&'static str, &'static str, String); 4] {
        [
            ("tmp/meminfo", "meminfo", self.meminfo()),
            ("tmp/stat", "stat", self.stat()),
            ("tmp/loadavg", "loadavg", "0.00 0.00 0.00 1/1 1\n".into()),
            ("tmp/boot_id", "sys/kernel/random/boot_id", self.boot_id()),
        ]
    }

    /// The memory limit, as if all of it were free: only the cgroup knows the usage.
    fn meminfo(&self) -> String {
        let total = self.memory_kib;
        let mut text = String::with_capacity(1024);
        let mut line = |name: &str, kib: u64| {
            let _ = writeln!(text, "{:<16}{kib:>8} kB", format!("{name}:"));
        };
        for name in ["MemTotal", "MemFree", "MemAvailable"] {
            line(name, total);
        }
        for name in [
            "Buffers",
            "Cached",
            "SwapCached",
            "Active",
            "Inactive",
            "SwapTotal",
            "SwapFree",
            "Dirty",
            "Writeback",
            "AnonPages",
            "Mapped",
            "Shmem",
            "KReclaimable",
            "Slab",
            "SReclaimable",
            "SUnreclaim",
            "PageTables",
        ] {
            line(name, 0);
        }
        line("CommitLimit", total);
        line("Committed_AS", 0);
        text
    }

    /// The CPUs that the sandbox may use, with zero CPU time, and the real boot time.
    fn stat(&self) -> String {
        let none = " 0 0 0 0 0 0 0 0 0 0\n";
        let mut text = format!("cpu {none}");
        for cpu in 0..self.cpus {
            let _ = write!(text, "cpu{cpu}{none}");
        }
        text + &format!(
            "intr 0\nctxt 0\nbtime {}\nprocesses 1\nprocs_running 1\nprocs_blocked 0\nsoftirq 0{none}",
            self.boot_time
        )
    }

    /// A random UUID (version 4).
    fn boot_id(&self) -> String {
        let number = u128::from_be_bytes(self.boot_id) & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
        let digits = format!("{number:032x}");
        let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
        parts.join("-") + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLACEMENTS: Replacements =
        Replacements { memory_kib: 65536, cpus: 2, boot_time: 1_700_000_000, boot_id: [0xff; 16] };

    #[test]
    fn boot_id_is_a_random_uuid() {
        assert_eq!(REPLACEMENTS.boot_id(), "ffffffff-ffff-4fff-bfff-ffffffffffff\n");
        let zero = Replacements { boot_id: [0; 16], ..REPLACEMENTS };
        assert_eq!(zero.boot_id(), "00000000-0000-4000-8000-000000000000\n");
    }

    #[test]
    fn stat_has_one_line_per_cpu() {
        let stat = REPLACEMENTS.stat();
        assert!(stat.starts_with("cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\ncpu1 0 "), "{stat}");
        assert!(!stat.contains("cpu2") && stat.contains("\nbtime 1700000000\n"), "{stat}");
    }

    #[test]
    fn meminfo_shows_the_limit() {
        let meminfo = REPLACEMENTS.meminfo();
        assert!(meminfo.starts_with("MemTotal:          65536 kB\nMemFree:           65536 kB\n"), "{meminfo}");
        assert!(meminfo.contains("\nSwapTotal:             0 kB\n"), "{meminfo}");
    }
}
