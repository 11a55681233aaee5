//! Loads the seccomp program that `build/` has compiled from `profiles/`.

use std::time::Duration;

use rustix::io::{Errno, Result};

use crate::enforcement::Enforcement;
use crate::sys::{Listener, install_seccomp};

const GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest.bpf"));
const WITHOUT_MEMORY_CGROUP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest-without-memory-cgroup.bpf"));
const WITHOUT_CPU_CGROUP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest-without-cpu-cgroup.bpf"));
const WITHOUT_CGROUPS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest-without-cgroups.bpf"));

/// `ENOTSUPP`, a kernel-internal error number: the memory for compiled BPF programs is used up.
pub(crate) const BPF_MEMORY_EXHAUSTED: Errno = Errno::from_raw_os_error(524);

/// The delay before a retry: the kernel frees that memory shortly after the last user of a program has ended.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Installs the program for this host, and returns the listener for the calls that it leaves to the init.
pub(crate) fn install(enforcement: Enforcement) -> Result<Listener> {
    let program = program(match (enforcement.memory_by_cgroup, enforcement.cpu_by_cgroup) {
        (true, true) => GUEST,
        (false, true) => WITHOUT_MEMORY_CGROUP,
        (true, false) => WITHOUT_CPU_CGROUP,
        (false, false) => WITHOUT_CGROUPS,
    });
    match install_seccomp(&program) {
        Err(errno) if errno == BPF_MEMORY_EXHAUSTED => {
            std::thread::sleep(RETRY_AFTER);
            install_seccomp(&program)
        }
        installed => installed,
    }
}

fn program(bytes: &[u8]) -> Vec<libc::sock_filter> {
    let (steps, _) = bytes.as_chunks::<8>();
    let read = |&[c0, c1, jt, jf, k0, k1, k2, k3]: &[u8; 8]| libc::sock_filter {
        code: u16::from_ne_bytes([c0, c1]),
        jt,
        jf,
        k: u32::from_ne_bytes([k0, k1, k2, k3]),
    };
    steps.iter().map(read).collect()
}

#[cfg(test)]
mod tests;
