//! The compiled programs, run by a small interpreter: every answer that the profiles promise.
#![allow(clippy::cast_sign_loss)] // the constants of libc are signed, the kernel takes them as bits

use super::*;

const ALLOW: u32 = 0x7fff_0000;
const KILL_PROCESS: u32 = 0x8000_0000;

const fn errno(number: i32) -> u32 {
    0x0005_0000 | number.cast_unsigned()
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Runs a classic BPF program on a `seccomp_data`.
fn judge(bytes: &[u8], architecture: u32, number: i64, arguments: &[u64]) -> u32 {
    let mut data = [0_u32; 16];
    data[0] = u32::try_from(number).unwrap();
    data[1] = architecture;
    for (index, argument) in arguments.iter().enumerate() {
        data[4 + 2 * index] = u32::try_from(argument & 0xffff_ffff).unwrap();
        data[5 + 2 * index] = u32::try_from(argument >> 32).unwrap();
    }
    let program = program(bytes);
    let (mut at, mut register) = (0, 0);
    loop {
        let libc::sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        match code {
            0x20 => register = data[k as usize / 4],
            0x54 => register &= k,
            0x05 => at += k as usize,
            0x15 => at += usize::from(if register == k { jt } else { jf }),
            0x35 => at += usize::from(if register >= k { jt } else { jf }),
            0x06 => return k,
            other => panic!("unknown instruction {other:#x}"),
        }
    }
}

fn guest(number: i64, arguments: &[u64]) -> u32 {
    judge(GUEST, ARCHITECTURE, number, arguments)
}

#[test]
fn ordinary_calls_are_allowed() {
    for number in
        [libc::SYS_read, libc::SYS_openat, libc::SYS_execve, libc::SYS_futex, libc::SYS_statx, libc::SYS_prctl]
    {
        assert_eq!(guest(number, &[]), ALLOW, "{number}");
    }
}

#[test]
fn dangerous_calls_are_refused_and_unknown_ones_absent() {
    for number in
        [libc::SYS_mount, libc::SYS_ptrace, libc::SYS_bpf, libc::SYS_unshare, libc::SYS_setns, libc::SYS_keyctl]
    {
        assert_eq!(guest(number, &[]), errno(libc::EPERM), "{number}");
    }
    for number in
        [libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, 999, 0x4000_0000 | libc::SYS_read]
    {
        assert_eq!(guest(number, &[]), errno(libc::ENOSYS), "{number}");
    }
}

#[test]
fn another_architectures_entry_kills() {
    assert_eq!(judge(GUEST, 0x4000_0003, libc::SYS_read, &[]), KILL_PROCESS);
}

#[test]
fn clone_may_fork_but_not_make_namespaces() {
    let threads = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
    assert_eq!(guest(libc::SYS_clone, &[libc::SIGCHLD as u64]), ALLOW);
    assert_eq!(guest(libc::SYS_clone, &[threads as u64]), ALLOW);
    for namespace in [
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWTIME,
    ] {
        for high in [0, 1 << 32] {
            let flags = (namespace | libc::SIGCHLD) as u64 | high;
            assert_eq!(guest(libc::SYS_clone, &[flags]), errno(libc::EPERM), "{flags:#x}");
        }
    }
}

#[test]
fn only_ordinary_sockets_can_be_made() {
    let socket =
        |family: i32, kind: i32, protocol: i32| guest(libc::SYS_socket, &[family as u64, kind as u64, protocol as u64]);
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    assert_eq!(socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0), ALLOW);
    for family in [libc::AF_INET, libc::AF_INET6] {
        assert_eq!(socket(family, libc::SOCK_STREAM | flags, libc::IPPROTO_TCP), ALLOW);
        assert_eq!(socket(family, libc::SOCK_DGRAM | flags, 0), ALLOW);
        assert_eq!(socket(family, libc::SOCK_RAW, libc::IPPROTO_ICMP), errno(libc::EAFNOSUPPORT));
        assert_eq!(socket(family, libc::SOCK_STREAM, 132), errno(libc::EAFNOSUPPORT), "SCTP");
        assert_eq!(socket(family, libc::SOCK_DGRAM, libc::IPPROTO_ICMP), errno(libc::EAFNOSUPPORT), "ping");
    }
    assert_eq!(socket(libc::AF_NETLINK, libc::SOCK_RAW, 0), ALLOW);
    assert_eq!(guest(libc::SYS_socketpair, &[libc::AF_UNIX as u64]), ALLOW);
    assert_eq!(guest(libc::SYS_socketpair, &[libc::AF_VSOCK as u64]), errno(libc::EAFNOSUPPORT));
    for (family, protocol) in [(libc::AF_NETLINK, 9), (libc::AF_PACKET, 0), (libc::AF_ALG, 0), (libc::AF_VSOCK, 0)] {
        assert_eq!(socket(family, libc::SOCK_RAW, protocol), errno(libc::EAFNOSUPPORT), "{family}");
    }
}

#[test]
fn no_file_becomes_setuid() {
    let refused = errno(libc::EPERM);
    for mode in [0o4755, 0o2755, 0o6777] {
        assert_eq!(guest(libc::SYS_fchmod, &[3, mode]), refused, "{mode:o}");
        assert_eq!(guest(libc::SYS_fchmodat, &[3, 0, mode]), refused, "{mode:o}");
        assert_eq!(guest(libc::SYS_mkdirat, &[3, 0, mode]), refused, "{mode:o}");
        assert_eq!(guest(libc::SYS_mknodat, &[3, 0, mode]), refused, "{mode:o}");
        assert_eq!(guest(libc::SYS_openat, &[3, 0, libc::O_CREAT as u64, mode]), refused, "{mode:o}");
        assert_eq!(guest(libc::SYS_openat, &[3, 0, libc::O_TMPFILE as u64, mode]), refused, "{mode:o}");
        assert_eq!(guest(libc::SYS_openat, &[3, 0, libc::O_RDWR as u64, mode]), ALLOW, "a mode that does not count");
    }
    assert_eq!(guest(libc::SYS_fchmod, &[3, 0o1777]), ALLOW);
    assert_eq!(guest(libc::SYS_openat, &[3, 0, libc::O_CREAT as u64, 0o666]), ALLOW);
    assert_eq!(guest(libc::SYS_openat2, &[]), errno(libc::ENOSYS), "its mode cannot be seen");
}

#[test]
fn huge_pages_and_core_limits_are_the_hosts() {
    let refused = errno(libc::EPERM);
    assert_eq!(guest(libc::SYS_mmap, &[0, 4096, 3, 0x22]), ALLOW);
    assert_eq!(guest(libc::SYS_mmap, &[0, 4096, 3, 0x40022]), refused);
    assert_eq!(guest(libc::SYS_memfd_create, &[0, 4]), refused);
    assert_eq!(guest(libc::SYS_setrlimit, &[4]), refused);
    assert_eq!(guest(libc::SYS_setrlimit, &[7]), ALLOW);
    assert_eq!(guest(libc::SYS_prlimit64, &[0, 4, 0, 1]), ALLOW, "asking");
    for limit in [1, 1 << 32] {
        assert_eq!(guest(libc::SYS_prlimit64, &[0, 4, limit]), refused, "{limit:#x}");
    }
}

#[test]
fn a_terminal_cannot_be_typed_into() {
    let ioctl = |request: u64| guest(libc::SYS_ioctl, &[0, request]);
    assert_eq!(ioctl(libc::TIOCGWINSZ), ALLOW);
    for request in [0x5412, 0x541c, 0x5423, 0x1_0000_5412] {
        assert_eq!(ioctl(request), errno(libc::EPERM), "{request:#x}");
    }
}

#[test]
fn without_a_memory_cgroup_nothing_hides_from_the_watchdog() {
    let judge = |number, arguments: &[u64]| judge(WITHOUT_MEMORY_CGROUP, ARCHITECTURE, number, arguments);
    assert_eq!(judge(libc::SYS_memfd_create, &[]), errno(libc::EPERM));
    for number in [libc::SYS_shmget, libc::SYS_semget, libc::SYS_msgget] {
        assert_eq!(judge(number, &[]), errno(libc::EPERM), "{number}");
    }
    assert_eq!(judge(libc::SYS_setsockopt, &[3, 1, 7]), errno(0), "SO_SNDBUF is ignored");
    assert_eq!(judge(libc::SYS_setsockopt, &[3, 1, 8]), errno(0), "SO_RCVBUF is ignored");
    assert_eq!(judge(libc::SYS_setsockopt, &[3, 1, 2]), ALLOW, "SO_REUSEADDR");
    assert_eq!(judge(libc::SYS_setsockopt, &[3, 6, 7]), ALLOW, "a TCP option of the same number");
    assert_eq!(judge(libc::SYS_read, &[]), ALLOW);
}
