//! The walls around an instance: towards the host, and towards other instances.

use ringfence_backend::ExitStatus;
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use super::Constructor;
use super::cases::{TIMEOUT, create, shell};

pub(super) async fn guest_has_no_host_files_and_no_network(backend: Constructor) {
    let backend = backend(None);
    let instance = create(&backend).await;
    for attempt in [
        "cat /etc/shadow",
        "ls /root /home/*",
        "touch /usr/x",
        "touch /x",
        "echo > /dev/tcp/127.0.0.1/22",
        "mount -t tmpfs none /mnt",
        "chroot / true",
    ] {
        let (status, output) = shell(&instance, &format!("{attempt} 2>/dev/null")).await;
        assert!(!matches!(status, ExitStatus::Exited(0)) && output.is_empty(), "{attempt}: {status:?} {output}");
    }
    let (_, capabilities) = shell(&instance, "grep -E 'Cap(Eff|Prm|Bnd)|NoNewPrivs' /proc/self/status").await;
    assert!(capabilities.contains("NoNewPrivs:\t1"), "{capabilities}");
    for line in capabilities.lines().filter(|line| line.starts_with("Cap")) {
        assert!(line.ends_with("0000000000000000"), "{line}");
    }
    backend.end().await;
}

pub(super) async fn instances_do_not_see_each_other(backend: Constructor) {
    // Its argument marks the process.
    const LISTEN: &str = r#"import signal, socket
listener = socket.socket(socket.AF_UNIX)
listener.bind("\0contract")
listener.listen()
print("listening", flush=True)
signal.pause()"#;
    const SHARED: &str = "for directory in /workspace /tmp /dev/shm; do echo x > $directory/file; done";
    // Prints what it finds of the other instance. Its own command line does not contain the mark.
    const FIND: &str = r#"import os, socket
mark = str(4241 + 1).encode()
for path in ("/workspace/file", "/tmp/file", "/dev/shm/file"):
    if os.path.exists(path):
        print(path)
for pid in filter(str.isdigit, os.listdir("/proc")):
    if mark in open(f"/proc/{pid}/cmdline", "rb").read():
        print("process")
try:
    socket.socket(socket.AF_UNIX).connect("\0contract")
    print("socket")
except ConnectionRefusedError:
    pass"#;
    let backend = backend(None);
    let (first, second) = (create(&backend).await, create(&backend).await);
    assert_eq!(shell(&first, SHARED).await.0, ExitStatus::Exited(0));
    let mut listener = first.spawn(["python3", "-c", LISTEN, "4242"].map(Into::into).to_vec()).expect("start Python");
    let mut line = [0; 10];
    timeout(TIMEOUT, listener.stdout.read_exact(&mut line)).await.expect("in time").expect("the program listens");
    let find = format!("python3 -c '{FIND}'");
    assert_eq!(shell(&second, &find).await, (ExitStatus::Exited(0), String::new()));
    let all = "/workspace/file\n/tmp/file\n/dev/shm/file\nprocess\nsocket\n";
    assert_eq!(shell(&first, &find).await, (ExitStatus::Exited(0), all.into()), "the search finds its own instance");
    backend.end().await;
}
