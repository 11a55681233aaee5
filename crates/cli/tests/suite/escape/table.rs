//! Cases as data: the script, the options of its sandbox, its arguments, and the number of attempts it must report.
//!
//! Each row makes four tests: `bare`, which must escape, and `root`, `plain` and `sub`, which must not. `Setup::fill`
//! replaces names in braces. The comment at the top of each script describes its attempts.

use ringfence_testkit::escape::volumes::{self, Volumes};
use ringfence_testkit::escape::{Case, End, Inherits};

const PLAIN: Case = Case {
    script: "",
    sandbox: "",
    attack: "",
    attempts: 0,
    end: End::Reported,
    inherits: Inherits::Nothing,
    volumes: Volumes::None,
};

const MEMORY: Case = Case {
    script: "c02_memory_bomb.py",
    sandbox: "--memory 256M --pids 64 --workspace 64M --nofile 256",
    attempts: 1,
    end: End::ReportedOrOutOfMemory,
    ..PLAIN
};

const SOCKET_MEMORY: Case = Case {
    script: "c63_socket_memory.py",
    sandbox: "--memory 256M --pids 64 --workspace 64M --nofile 1024",
    attempts: 1,
    end: End::ReportedOrOutOfMemory,
    ..PLAIN
};

macro_rules! cases {
    ($($name:ident: $case:expr;)*) => {
        $(mod $name {
            use ringfence_testkit::User;
            use ringfence_testkit::escape::{run_bare, run_sandboxed};

            use super::*;

            const CASE: Case = $case;

            #[test]
            fn bare() {
                run_bare(concat!(stringify!($name), "::bare"), &CASE);
            }

            #[test]
            fn root() {
                run_sandboxed(concat!(stringify!($name), "::root"), &CASE, User::Root);
            }

            #[test]
            fn plain() {
                run_sandboxed(concat!(stringify!($name), "::plain"), &CASE, User::Plain);
            }

            #[test]
            fn sub() {
                run_sandboxed(concat!(stringify!($name), "::sub"), &CASE, User::WithSubids);
            }
        })*
    };
}

// Resources
cases! {
    c01_fork_bomb: Case { script: "c01_fork_bomb.py", sandbox: "--pids 64", attack: "--pids 64", attempts: 4, ..PLAIN };
    c02_memory_anonymous: Case { attack: "--memory 256M --only anon", ..MEMORY };
    c02_memory_spread_over_processes: Case { attack: "--memory 256M --only anon-spread", ..MEMORY };
    c02_memory_shared: Case { attack: "--memory 256M --only shared-anon", ..MEMORY };
    c02_memory_files_in_tmp: Case { attack: "--memory 256M --only files-tmp", ..MEMORY };
    c02_memory_files_in_shm: Case { attack: "--memory 256M --only files-shm", ..MEMORY };
    c02_memory_memfd: Case { attack: "--memory 256M --only memfd", ..MEMORY };
    c02_memory_sysv_segments: Case { attack: "--memory 256M --only sysv-shm", ..MEMORY };
    c02_memory_pipes: Case { attack: "--memory 256M --only pipes", ..MEMORY };
    c02_memory_unix_sockets: Case { attack: "--memory 256M --only sockets", ..MEMORY };
    c02_memory_tcp_sockets: Case { attack: "--memory 256M --only tcp-sockets", ..MEMORY };
    c03_mlock_swap: Case {
        script: "c03_mlock_swap.py",
        sandbox: "--memory 256M",
        attack: "--memory 256M",
        attempts: 5,
        end: End::ReportedOrOutOfMemory,
        ..PLAIN
    };
    c04_disk_fill: Case {
        script: "c04_disk_fill.py",
        sandbox: "--workspace 64M --memory 256M",
        attack: "--workspace 64M",
        attempts: 5,
        ..PLAIN
    };
    c05_inode_fill: Case {
        script: "c05_inode_fill.py",
        sandbox: "--workspace-inodes 2000",
        attack: "--workspace-inodes 2000",
        attempts: 5,
        ..PLAIN
    };
    c06_deep_trees: Case { script: "c06_deep_trees.py", sandbox: "--workspace-inodes 2000", attempts: 3, ..PLAIN };
    c07_descriptors: Case {
        script: "c07_descriptors.py",
        sandbox: "--nofile 256",
        attack: "--nofile 256",
        attempts: 5,
        ..PLAIN
    };
    c08_priority: Case {
        script: "c08_priority.py",
        sandbox: "--cpus 1 --pids 64",
        attack: "--cpus 1 --pids 64",
        attempts: 5,
        ..PLAIN
    };
    c11_archive_bomb: Case {
        script: "c11_archive_bomb.py",
        sandbox: "--workspace 64M --workspace-inodes 2000 --memory 256M",
        attack: "--workspace 64M --workspace-inodes 2000",
        attempts: 3,
        ..PLAIN
    };
    c12_daemons: Case {
        script: "c12_daemons.py",
        sandbox: "--pids 64",
        attack: "--token {token}",
        attempts: 2,
        ..PLAIN
    };
    c13_init: Case { script: "c13_init.py", sandbox: "--pids 64", attack: "--pids 64", attempts: 4, ..PLAIN };
    c15_cgroup: Case { script: "c15_cgroup.py", attempts: 6, ..PLAIN };
    c67_terminals: Case { script: "c67_terminals.py", attempts: 2, ..PLAIN };
}

// Kernel surface
cases! {
    c16_user_namespace: Case { script: "c16_user_namespace.py", attempts: 15, ..PLAIN };
    c17_mount: Case { script: "c17_mount.py", attempts: 13, ..PLAIN };
    c18_ptrace: Case { script: "c18_ptrace.py", attack: "--host-pid {host_pid}", attempts: 18, ..PLAIN };
    c19_kernel_programs: Case { script: "c19_kernel_programs.py", attempts: 6, ..PLAIN };
    c20_io_uring: Case { script: "c20_io_uring.py", attempts: 4, ..PLAIN };
    c21_keyctl: Case { script: "c21_keyctl.py", attempts: 5, ..PLAIN };
    c22_machine: Case { script: "c22_machine.py", attempts: 14, ..PLAIN };
    c23_file_handles: Case { script: "c23_file_handles.py", attempts: 3, ..PLAIN };
    c24_entry_points: Case { script: "c24_entry_points.py", attempts: 3, ..PLAIN };
    c25_setuid: Case { script: "c25_setuid.py", attempts: 8, ..PLAIN };
    c26_personality: Case { script: "c26_personality.py", attempts: 5, ..PLAIN };
    c27_terminal: Case { script: "c27_terminal.py", attempts: 4, ..PLAIN };
    c28_sockets: Case { script: "c28_sockets.py", attempts: 23, ..PLAIN };
}

// /proc and devices
cases! {
    c29_proc: Case {
        script: "c29_proc.py",
        attack: "--host-pid {host_pid} --host-file {host_file}",
        attempts: 23,
        ..PLAIN
    };
    c29_host_facts: Case {
        script: "c29_host_facts.py",
        sandbox: "--memory 256M --workspace 64M",
        attack: "--memory 256M --boot-id {boot_id}",
        attempts: 18,
        ..PLAIN
    };
    c30_descriptors_inherited: Case {
        script: "c30_descriptors_inherited.py",
        attempts: 2,
        inherits: Inherits::HostFile,
        ..PLAIN
    };
    c31_runner_binary: Case { script: "c31_runner_binary.py", attack: "--runner {runner}", attempts: 7, ..PLAIN };
    c32_kernel_settings: Case { script: "c32_kernel_settings.py", attempts: 18, ..PLAIN };
    c33_masked_races: Case { script: "c33_masked_races.py", attempts: 4, ..PLAIN };
    c34_devices: Case { script: "c34_devices.py", attempts: 16, ..PLAIN };
}

// Files. The module `files` tests cases 35 to 40 and 43 for the file tools of sessions.
cases! {
    c35_symlinks: Case {
        script: "c35_symlinks.py",
        sandbox: volumes::OPTIONS,
        attack: volumes::ARGUMENTS,
        attempts: 9,
        volumes: Volumes::Ordinary,
        ..PLAIN
    };
    c37_links_and_renames: Case {
        script: "c37_links_and_renames.py",
        sandbox: volumes::NESTED_OPTIONS,
        attack: volumes::ARGUMENTS,
        attempts: 19,
        volumes: Volumes::Ordinary,
        ..PLAIN
    };
    c41_protected_names: Case {
        script: "c41_protected_names.py",
        sandbox: volumes::OPTIONS,
        attack: volumes::PROJECT_ARGUMENTS,
        attempts: 31,
        volumes: Volumes::WithProtectedNames,
        ..PLAIN
    };
    c41_protected_names_of_strict_volumes: Case {
        script: "c41_protected_names.py",
        sandbox: volumes::STRICT_OPTIONS,
        attack: volumes::PROJECT_ARGUMENTS,
        attempts: 31,
        volumes: Volumes::WithProtectedNames,
        ..PLAIN
    };
    c42_protected_names_that_do_not_exist: Case {
        script: "c41_protected_names.py",
        sandbox: volumes::STRICT_OPTIONS,
        attack: volumes::PROJECT_ARGUMENTS,
        attempts: 26,
        volumes: Volumes::Ordinary,
        ..PLAIN
    };
    c77_names_of_homes: Case {
        script: "c41_protected_names.py",
        sandbox: volumes::OPTIONS,
        attack: volumes::HOME_ARGUMENTS,
        attempts: 22,
        volumes: Volumes::WithProtectedNames,
        ..PLAIN
    };
}

// Network. The unit tests of crates/egress cover rebinding and server names (48). Case 53 is reserved for secrets, a
// feature that does not exist yet.
cases! {
    c45_metadata: Case {
        script: "c45_metadata.py",
        sandbox: "--network allow=127.0.0.1:{port}",
        attack: "--proxy {proxy} --port {port}",
        attempts: 49,
        ..PLAIN
    };
    c46_host_without_network: Case {
        script: "c46_host_network.py",
        sandbox: "--network none",
        attack: "--port {port} --other-port {other_port} --udp-port {udp_port}",
        attempts: 14,
        ..PLAIN
    };
    c47_service_sockets: Case {
        script: "c47_service_sockets.py",
        attack: "--abstract {abstract} --outside {directory}",
        attempts: 10,
        ..PLAIN
    };
    c50_host_names: Case {
        script: "c50_host_names.py",
        sandbox: "--network allow=127.0.0.1:{port},localhost:{other_port}",
        attack: "--proxy {proxy} --port {port} --other-port {other_port}",
        attempts: 54,
        ..PLAIN
    };
    c74_tunnelled_names: Case {
        script: "c74_tunnelled_names.py",
        sandbox: "--network allow=127.0.0.1:{port},localhost:{port}+private",
        attack: "--proxy {proxy} --port {port}",
        attempts: 14,
        ..PLAIN
    };
    c51_around_the_proxy: Case {
        script: "c46_host_network.py",
        sandbox: "--network allow=127.0.0.1:{port}",
        attack: "--port {port} --other-port {other_port} --udp-port {udp_port}",
        attempts: 14,
        ..PLAIN
    };
}

// Host memory that no limit of the sandbox covers, and activity of others on shared files
cases! {
    c63_netlink: Case { attack: "--memory 256M --only netlink", ..SOCKET_MEMORY };
    c63_udp: Case { attack: "--memory 256M --only udp", ..SOCKET_MEMORY };
    c63_udp_unbound: Case { attack: "--memory 256M --only udp-unbound", ..SOCKET_MEMORY };
    c63_udp_corked: Case { attack: "--memory 256M --only udp-corked", ..SOCKET_MEMORY };
    c64_filters: Case { script: "c64_filters.py", attempts: 8, ..PLAIN };
    c66_watches: Case { script: "c66_watches.py", attempts: 12, ..PLAIN };
}
