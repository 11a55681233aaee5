//! Runs the compiled filters in a small BPF interpreter and checks their actions.
#![allow(clippy::cast_sign_loss)] // the constants of libc are signed, the kernel uses their bits

use super::*;

const ALLOW: u32 = 0x7fff_0000;
const NOTIFY_INIT: u32 = 0x7fc0_0000;
const KILL_PROCESS: u32 = 0x8000_0000;

const fn errno(number: i32) -> u32 {
    0x0005_0000 | number.cast_unsigned()
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Runs a classic BPF program on a `seccomp_data`.
fn evaluate(bytes: &[u8], architecture: u32, number: i64, arguments: &[u64]) -> u32 {
    let mut data = [0_u32; 16];
    data[0] = u32::try_from(number).unwrap();
    data[1] = architecture;
    for (index, argument) in arguments.iter().enumerate() {
        data[4 + 2 * index] = u32::try_from(argument & 0xffff_ffff).unwrap();
        data[5 + 2 * index] = u32::try_from(argument >> 32).unwrap();
    }
    let program = program(bytes);
    let (mut next, mut register) = (0, 0);
    loop {
        let libc::sock_filter { code, jt, jf, k } = program[next];
        next += 1;
        match code {
            0x20 => register = data[k as usize / 4],
            0x54 => register &= k,
            0x05 => next += k as usize,
            0x15 => next += usize::from(if register == k { jt } else { jf }),
            0x35 => next += usize::from(if register >= k { jt } else { jf }),
            0x06 => return k,
            code => panic!("unknown instruction {code:#x}"),
        }
    }
}

fn guest(number: i64, arguments: &[u64]) -> u32 {
    evaluate(GUEST, ARCHITECTURE, number, arguments)
}

#[test]
fn ordinary_calls_are_allowed() {
    for number in
        [libc::SYS_read, libc::SYS_openat, libc::SYS_execve, libc::SYS_futex, libc::SYS_statx, libc::SYS_fcntl]
    {
        assert_eq!(guest(number, &[]), ALLOW, "{number}");
    }
}

#[test]
fn dangerous_calls_are_denied_and_unknown_calls_do_not_exist() {
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
fn calls_of_another_architecture_kill_the_process() {
    assert_eq!(evaluate(GUEST, 0x4000_0003, libc::SYS_read, &[]), KILL_PROCESS);
}

#[test]
fn clone_can_fork_but_not_make_namespaces() {
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
fn only_unix_tcp_udp_and_netlink_sockets_can_be_made() {
    let socket =
        |family: i32, kind: i32, protocol: i32| guest(libc::SYS_socket, &[family as u64, kind as u64, protocol as u64]);
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    assert_eq!(socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0), ALLOW);
    for family in [libc::AF_INET, libc::AF_INET6] {
        assert_eq!(socket(family, libc::SOCK_STREAM | flags, libc::IPPROTO_TCP), ALLOW);
        assert_eq!(socket(family, libc::SOCK_STREAM, 0), ALLOW);
        assert_eq!(socket(family, libc::SOCK_DGRAM | flags, 0), NOTIFY_INIT);
        assert_eq!(socket(family, libc::SOCK_DGRAM, libc::IPPROTO_UDP), NOTIFY_INIT);
        assert_eq!(socket(family, libc::SOCK_DGRAM, libc::IPPROTO_TCP), errno(libc::EAFNOSUPPORT));
        assert_eq!(socket(family, libc::SOCK_RAW, libc::IPPROTO_ICMP), errno(libc::EAFNOSUPPORT));
        assert_eq!(socket(family, libc::SOCK_STREAM, 132), errno(libc::EAFNOSUPPORT), "SCTP");
        assert_eq!(socket(family, libc::SOCK_DGRAM, libc::IPPROTO_ICMP), errno(libc::EAFNOSUPPORT), "ping");
    }
    assert_eq!(socket(libc::AF_NETLINK, libc::SOCK_RAW, 0), NOTIFY_INIT);
    assert_eq!(socket(libc::AF_NETLINK, libc::SOCK_DGRAM | flags, 0), NOTIFY_INIT);
    assert_eq!(guest(libc::SYS_socketpair, &[libc::AF_UNIX as u64]), ALLOW);
    assert_eq!(guest(libc::SYS_socketpair, &[libc::AF_VSOCK as u64]), errno(libc::EAFNOSUPPORT));
    for (family, protocol) in [(libc::AF_NETLINK, 9), (libc::AF_PACKET, 0), (libc::AF_ALG, 0), (libc::AF_VSOCK, 0)] {
        assert_eq!(socket(family, libc::SOCK_RAW, protocol), errno(libc::EAFNOSUPPORT), "{family}");
    }
}

#[test]
fn files_cannot_become_setuid() {
    let denied = errno(libc::EPERM);
    for mode in [0o4755, 0o2755, 0o6777] {
        assert_eq!(guest(libc::SYS_fchmod, &[3, mode]), denied, "{mode:o}");
        assert_eq!(guest(libc::SYS_fchmodat, &[3, 0, mode]), denied, "{mode:o}");
        assert_eq!(guest(libc::SYS_mkdirat, &[3, 0, mode]), denied, "{mode:o}");
        assert_eq!(guest(libc::SYS_mknodat, &[3, 0, mode]), denied, "{mode:o}");
        assert_eq!(guest(libc::SYS_openat, &[3, 0, libc::O_CREAT as u64, mode]), denied, "{mode:o}");
        assert_eq!(guest(libc::SYS_openat, &[3, 0, libc::O_TMPFILE as u64, mode]), denied, "{mode:o}");
        assert_eq!(
            guest(libc::SYS_openat, &[3, 0, libc::O_RDWR as u64, mode]),
            ALLOW,
            "without O_CREAT the mode is ignored"
        );
    }
    assert_eq!(guest(libc::SYS_fchmod, &[3, 0o1777]), ALLOW);
    assert_eq!(guest(libc::SYS_openat, &[3, 0, libc::O_CREAT as u64, 0o666]), ALLOW);
    assert_eq!(guest(libc::SYS_openat2, &[]), errno(libc::ENOSYS), "a filter cannot see its mode");
}

#[test]
fn huge_pages_and_core_limits_are_denied() {
    let denied = errno(libc::EPERM);
    assert_eq!(guest(libc::SYS_mmap, &[0, 4096, 3, 0x22]), ALLOW);
    assert_eq!(guest(libc::SYS_mmap, &[0, 4096, 3, 0x40022]), denied);
    assert_eq!(guest(libc::SYS_memfd_create, &[0, 4]), denied);
    assert_eq!(guest(libc::SYS_setrlimit, &[4]), denied);
    assert_eq!(guest(libc::SYS_setrlimit, &[7]), ALLOW);
    assert_eq!(guest(libc::SYS_prlimit64, &[0, 4, 0, 1]), ALLOW, "reading a limit");
    for limit in [1, 1 << 32] {
        assert_eq!(guest(libc::SYS_prlimit64, &[0, 4, limit]), denied, "{limit:#x}");
    }
}

#[test]
fn only_listed_device_commands_are_allowed() {
    let ioctl = |request: u64| guest(libc::SYS_ioctl, &[0, request]);
    for request in [libc::TIOCGWINSZ, libc::TCGETS, libc::TCGETS2, libc::FIONBIO, libc::FIOCLEX, libc::FIONREAD] {
        assert_eq!(ioctl(request), ALLOW, "{request:#x}");
    }
    for request in [libc::TIOCGPTPEER, libc::TIOCSPTLCK, libc::FICLONE, libc::SIOCGIFCONF, libc::SIOCGIFINDEX] {
        assert_eq!(ioctl(request), ALLOW, "{request:#x}");
    }
    for request in [0x5412, 0x541c, 0x541d, 0x5423, 0x1_0000_5412] {
        assert_eq!(ioctl(request), errno(libc::EPERM), "{request:#x}");
    }
    // FIBMAP, BLKGETSIZE, FS_IOC_SETFLAGS, FIEMAP, FITRIM, NS_GET_PARENT, SIOCSIFFLAGS, an unknown one.
    for request in [1, 0x1260, 0x4008_6602, 0xc020_660b, 0xc018_5879, 0xb702, 0x8914, 0xdead_beef] {
        assert_eq!(ioctl(request), errno(libc::ENOTTY), "{request:#x}");
    }
    assert_eq!(ioctl(libc::SIOCETHTOOL), errno(libc::EOPNOTSUPP));
}

#[test]
fn only_listed_process_options_are_allowed() {
    let prctl = |option: i32| guest(libc::SYS_prctl, &[option as u64]);
    for option in [libc::PR_SET_NAME, libc::PR_SET_PDEATHSIG, libc::PR_SET_DUMPABLE, libc::PR_SET_NO_NEW_PRIVS] {
        assert_eq!(prctl(option), ALLOW, "{option}");
    }
    assert_eq!(prctl(libc::PR_SET_VMA), ALLOW);
    for option in [libc::PR_SET_SECCOMP, libc::PR_SET_SPECULATION_CTRL, libc::PR_SET_MM, 67, 9999] {
        assert_eq!(prctl(option), errno(libc::EINVAL), "{option}");
    }
}

#[test]
fn guests_cannot_use_bpf_memory_of_the_host() {
    assert_eq!(guest(libc::SYS_seccomp, &[1]), errno(libc::ENOSYS));
    let setsockopt = |level: u64, option: i32| guest(libc::SYS_setsockopt, &[3, level, option as u64]);
    for option in [libc::SO_ATTACH_FILTER, libc::SO_ATTACH_BPF, libc::SO_ATTACH_REUSEPORT_CBPF, 52] {
        assert_eq!(setsockopt(1, option), errno(libc::EPERM), "{option}");
        assert_eq!(setsockopt(1 << 32 | 1, option), errno(libc::EPERM), "{option}");
        assert_eq!(setsockopt(6, option), ALLOW, "a TCP option with the same number");
    }
}

#[test]
fn socket_buffer_sizes_cannot_be_changed_in_any_profile() {
    for program in [GUEST, WITHOUT_MEMORY_CGROUP, WITHOUT_CPU_CGROUP, WITHOUT_CGROUPS] {
        let setsockopt = |level, option| evaluate(program, ARCHITECTURE, libc::SYS_setsockopt, &[3, level, option]);
        assert_eq!(setsockopt(1, 7), errno(0), "SO_SNDBUF is ignored");
        assert_eq!(setsockopt(1, 8), errno(0), "SO_RCVBUF is ignored");
        assert_eq!(setsockopt(1, 2), ALLOW, "SO_REUSEADDR");
        assert_eq!(setsockopt(6, 7), ALLOW, "a TCP option with the same number");
    }
}

#[test]
fn guests_cannot_observe_access_to_shared_files() {
    let watch = |mask: u32| guest(libc::SYS_inotify_add_watch, &[3, 0, mask.into()]);
    assert_eq!(watch(libc::IN_MODIFY | libc::IN_CREATE | libc::IN_CLOSE_WRITE | libc::IN_ATTRIB), ALLOW);
    for event in [libc::IN_ACCESS, libc::IN_OPEN, libc::IN_CLOSE_NOWRITE, libc::IN_ALL_EVENTS] {
        assert_eq!(watch(event | libc::IN_MASK_ADD), NOTIFY_INIT, "{event:#x}");
    }
    assert_eq!(guest(libc::SYS_inotify_init1, &[0x800]), NOTIFY_INIT);
    assert_eq!(guest(libc::SYS_inotify_init1, &[1 << 32]), ALLOW, "a call of the init");
    for command in [libc::F_SETLEASE, libc::F_NOTIFY, 1040] {
        assert_eq!(guest(libc::SYS_fcntl, &[3, command as u64]), errno(libc::EINVAL), "{command}");
    }
    assert_eq!(guest(libc::SYS_fcntl, &[3, libc::F_DUPFD_CLOEXEC as u64]), ALLOW);
    assert_eq!(guest(libc::SYS_fadvise64, &[3, 0, 0, 4]), errno(0), "POSIX_FADV_DONTNEED is ignored");
    assert_eq!(guest(libc::SYS_fadvise64, &[3, 0, 0, 3]), ALLOW);
    for flags in [0x8, 0x80, 0x88] {
        assert_eq!(guest(libc::SYS_preadv2, &[3, 0, 1, 0, 0, flags]), errno(libc::EOPNOTSUPP), "{flags:#x}");
    }
    assert_eq!(guest(libc::SYS_preadv2, &[3, 0, 1, 0, 0, 1]), ALLOW);
    assert_eq!(guest(libc::SYS_syncfs, &[3]), errno(0));
    assert_eq!(guest(451, &[3]), errno(libc::ENOSYS), "cachestat");
    for number in [libc::SYS_fanotify_init, libc::SYS_fanotify_mark] {
        assert_eq!(guest(number, &[]), errno(libc::EPERM), "{number}");
    }
}

#[test]
fn profiles_without_cgroups_deny_more() {
    for (program, memory, cpu) in [
        (GUEST, ALLOW, ALLOW),
        (WITHOUT_MEMORY_CGROUP, errno(libc::EPERM), ALLOW),
        (WITHOUT_CPU_CGROUP, ALLOW, errno(libc::EPERM)),
        (WITHOUT_CGROUPS, errno(libc::EPERM), errno(libc::EPERM)),
    ] {
        let evaluate = |number, arguments: &[u64]| evaluate(program, ARCHITECTURE, number, arguments);
        for number in [libc::SYS_memfd_create, libc::SYS_shmget, libc::SYS_semget, libc::SYS_msgget] {
            assert_eq!(evaluate(number, &[]), memory, "{number}");
        }
        assert_eq!(evaluate(libc::SYS_sched_setaffinity, &[]), cpu);
        assert_eq!(evaluate(libc::SYS_read, &[]), ALLOW);
        assert_eq!(evaluate(libc::SYS_mount, &[]), errno(libc::EPERM));
    }
}
