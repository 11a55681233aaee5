//! Installs the seccomp filter. `build/` compiles it from the lists of system calls in `profiles/`.

use std::time::Duration;

use rustix::io::{Errno, Result};

use crate::enforcement::Enforcement;
use crate::sys::{NotificationListener, install_seccomp};

const GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest.bpf"));
const WITHOUT_MEMORY_CGROUP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest-without-memory-cgroup.bpf"));
const WITHOUT_CPU_CGROUP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest-without-cpu-cgroup.bpf"));
const WITHOUT_CGROUPS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest-without-cgroups.bpf"));

/// `ENOTSUPP`, a kernel-internal error number: the host's memory for compiled BPF programs is used up.
pub(crate) const BPF_MEMORY_EXHAUSTED: Errno = Errno::from_raw_os_error(524);

/// Delay before a retry: the kernel frees this memory shortly after the last process with a program has ended.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Installs the filter for this host. Returns the listener for the calls that the filter passes to the init.
pub(crate) fn install(enforcement: Enforcement) -> Result<NotificationListener> {
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
    let (instructions, _) = bytes.as_chunks::<8>();
    let read = |&[c0, c1, jt, jf, k0, k1, k2, k3]: &[u8; 8]| libc::sock_filter {
        code: u16::from_ne_bytes([c0, c1]),
        jt,
        jf,
        k: u32::from_ne_bytes([k0, k1, k2, k3]),
    };
    instructions.iter().map(read).collect()
}

#[cfg(test)]
mod tests;
