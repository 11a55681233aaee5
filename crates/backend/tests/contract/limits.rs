//! Limits of processes, CPU time and the workspace.

use ringfence_backend::{ExitStatus, InstanceRequest};
use ringfence_core::Workspace;

use super::Constructor;
use super::cases::{shell, spec};

pub(super) async fn process_limit_is_enforced(backend: Constructor) {
    const FORK: &str = "import os, signal
children = []
try:
    while len(children) < 200:
        child = os.fork()
        if child == 0:
            signal.pause()
        children.append(child)
except BlockingIOError:
    pass
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print(len(children))";
    let backend = backend(None);
    let mut limited = spec();
    limited.limits.pids = 20;
    let instance = backend.create(InstanceRequest::new(limited)).await.expect("create an instance").instance;
    let (status, output) = shell(&instance, &format!("python3 -c '{FORK}'")).await;
    let forked: u32 = output.trim().parse().unwrap_or_else(|_| panic!("{status:?} {output}"));
    assert!((10..20).contains(&forked), "{forked} processes beside the init, bash and Python");
    backend.end().await;
}

pub(super) async fn cpu_limit_is_enforced(backend: Constructor) {
    // Two processes are busy for one second.
    const BUSY: &str = "import os, time
end = time.monotonic() + 1
child = os.fork()
while time.monotonic() < end:
    pass
if child:
    os.waitpid(child, 0)
    print(sum(os.times()[:4]))";
    let backend = backend(None);
    let mut limited = spec();
    limited.limits.cpus = 0.3;
    let instance = backend.create(InstanceRequest::new(limited)).await.expect("create an instance").instance;
    let (status, output) = shell(&instance, &format!("python3 -c '{BUSY}'")).await;
    let seconds: f64 = output.trim().parse().unwrap_or_else(|_| panic!("{status:?} {output}"));
    // Without a cgroup the processes share one CPU.
    let max = if instance.enforcement().cpu == "cgroup" { 0.6 } else { 1.3 };
    assert!(seconds < max, "{seconds} seconds of CPU time, limited by {}", instance.enforcement().cpu);
    backend.end().await;
}

pub(super) async fn workspace_limits_are_enforced(backend: Constructor) {
    let backend = backend(None);
    let mut limited = spec();
    limited.workspace = Workspace { bytes: 8 << 20, inodes: 1000 };
    let workspace = limited.workspace;
    let instance = backend.create(InstanceRequest::new(limited)).await.expect("create an instance").instance;
    let write_bytes = |number| format!("head -c {number} /dev/zero > file");
    let create_files = |number| format!("for ((i = 0; i < {number}; i++)); do : > $i || exit 1; done");
    for directory in ["/workspace", "/tmp", "/dev/shm"] {
        for (command, expected) in [
            (write_bytes(workspace.bytes / 2), 0),
            (write_bytes(workspace.bytes + 1), 1),
            (create_files(workspace.inodes / 2), 0),
            (create_files(workspace.inodes + 1), 1),
        ] {
            let (status, _) = shell(&instance, &format!("cd {directory} && {command}")).await;
            assert_eq!(status, ExitStatus::Exited(expected), "{directory}: {command}");
            let removed = shell(&instance, "rm -rf /workspace/* /tmp/* /dev/shm/*").await;
            assert_eq!(removed.0, ExitStatus::Exited(0));
        }
    }
    assert_eq!(shell(&instance, "echo x > /workspace/file").await.0, ExitStatus::Exited(0));
    backend.end().await;
}
