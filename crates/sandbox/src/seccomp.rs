//! Loads the seccomp programs that `build.rs` has compiled from `profiles/`.

use rustix::io::Result;

use crate::enforcement::Enforcement;
use crate::sys::install_seccomp;

const GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest.bpf"));
const WITHOUT_MEMORY_CGROUP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/without-memory-cgroup.bpf"));
const WITHOUT_CPU_CGROUP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/without-cpu-cgroup.bpf"));

/// Installs every program that applies; the strictest answer holds.
pub(crate) fn install(enforcement: Enforcement) -> Result<()> {
    install_seccomp(&program(GUEST))?;
    if !enforcement.memory_by_cgroup {
        install_seccomp(&program(WITHOUT_MEMORY_CGROUP))?;
    }
    if !enforcement.cpu_by_cgroup {
        install_seccomp(&program(WITHOUT_CPU_CGROUP))?;
    }
    Ok(())
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
