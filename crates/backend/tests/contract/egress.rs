//! The sockets for egress, and what the guest can do with them.

use std::net::{SocketAddr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::unix::fs::symlink;
use std::path::Path;

use ringfence_backend::{Backend, Created, EgressPortError, ExitStatus, Instance, InstanceRequest};
use ringfence_core::{EgressSockets, MAX_EGRESS_PORTS, MIRROR_PORT, Network, PROXY_PORT, Root, Spec};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::Constructor;
use super::adoption::adopt_after_death;
use super::cases::{TIMEOUT, exit_of, output_of, shell, spec};

/// The ports of the instance in [`super::adoption::serve_until_killed`].
pub(super) const PORT_OF_SPEC: u16 = 8443;
pub(super) const LIVE_PORT: u16 = 22;

pub(super) fn egress_spec(ports: impl IntoIterator<Item = u16>) -> Spec {
    Spec { network: Network::Egress { ports: ports.into_iter().collect() }, ..spec() }
}

async fn create(backend: &Backend, spec: Spec) -> (Instance, EgressSockets) {
    let Created { instance, egress, .. } =
        backend.create(InstanceRequest::new(spec)).await.expect("create an instance");
    (instance, egress.expect("sockets"))
}

/// Takes the listener for a port.
fn take(listeners: &mut Vec<TcpListener>, port: u16) -> TcpListener {
    let is_found = |listener: &TcpListener| listener.local_addr().expect("an address").port() == port;
    listeners.remove(listeners.iter().position(is_found).expect("a listener for the port"))
}

/// Connects from the guest to an address, and checks that the connection arrives at `listener` with that address.
async fn dial(instance: &Instance, address: &str, listener: TcpListener) {
    let address: SocketAddrV4 = address.parse().expect("an address");
    let (ip, port) = (address.ip(), address.port());
    let command = format!("exec 3<>/dev/tcp/{ip}/{port} && echo request >&3 && cat <&3");
    let mut process = instance.spawn(["bash", "-c", &command].map(Into::into).to_vec()).expect("start bash");
    listener.set_nonblocking(true).expect("configure the listener");
    let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
    let accepted = timeout(TIMEOUT, listener.accept()).await;
    let (mut connection, _) = accepted.unwrap_or_else(|_| panic!("no connection to {address}")).expect("accept");
    assert_eq!(connection.local_addr().expect("an address"), SocketAddr::V4(address));
    let mut request = [0; 8];
    timeout(TIMEOUT, connection.read_exact(&mut request)).await.expect("in time").expect("read");
    assert_eq!(&request, b"request\n");
    connection.write_all(b"response").await.expect("write");
    drop(connection);
    assert_eq!(exit_of(instance, process.number).await, ExitStatus::Exited(0));
    assert_eq!(output_of(&mut process).await, "response");
}

/// Whether the guest can open a connection.
async fn connects(instance: &Instance, ip: &str, port: u16) -> bool {
    let (status, _) = shell(instance, &format!("exec 3<>/dev/tcp/{ip}/{port}")).await;
    status == ExitStatus::Exited(0)
}

pub(super) async fn egress_connections_have_the_dialled_address(backend: Constructor) {
    let backend = backend(None);
    let (instance, mut sockets) = create(&backend, egress_spec([PORT_OF_SPEC])).await;
    assert_eq!(sockets.transparent.len(), 3);
    for address in ["198.18.0.1:80", "198.18.129.3:443", "198.19.255.255:8443"] {
        let port = address.rsplit_once(':').expect("a port").1.parse().expect("a port");
        dial(&instance, address, take(&mut sockets.transparent, port)).await;
    }
    for (address, listener) in
        [("127.0.0.1:53", sockets.resolver_tcp), ("127.0.0.1:3128", sockets.proxy), ("127.0.0.1:3129", sockets.mirror)]
    {
        dial(&instance, address, listener).await;
    }
    for ip in ["169.254.169.254", "10.0.0.1", "198.17.255.255", "198.20.0.0", "203.0.113.1"] {
        assert!(!connects(&instance, ip, 80).await, "{ip} must be unreachable");
    }
    backend.end().await;
}

/// Responds to each query for an IPv4 address of any name with 198.18.0.7, and to other queries with no address. Returns
/// the names, and the task that responds.
fn serve_names(resolver: UdpSocket) -> (mpsc::UnboundedReceiver<Vec<u8>>, AbortOnDropHandle<()>) {
    let (sender, names) = mpsc::unbounded_channel();
    resolver.set_nonblocking(true).expect("configure the socket");
    let resolver = tokio::net::UdpSocket::from_std(resolver).expect("a socket");
    let task = tokio::spawn(async move {
        let mut query = [0; 512];
        while let Ok((length, guest)) = resolver.recv_from(&mut query).await {
            let question = &query[12..length];
            let end = question.iter().position(|byte| *byte == 0).expect("the end of the name");
            let is_ipv4 = question[end + 1..end + 3] == [0, 1];
            let header = [&query[..2], &[0x81, 0x80, 0, 1, 0, u8::from(is_ipv4), 0, 0, 0, 0]].concat();
            let address: &[u8] = &[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 18, 0, 7];
            let response = [&header[..], &question[..end + 5], if is_ipv4 { address } else { &[] }].concat();
            sender.send(question[1..end].to_vec()).expect("the test runs");
            resolver.send_to(&response, guest).await.expect("respond");
        }
    });
    (names, AbortOnDropHandle::new(task))
}

pub(super) async fn names_are_resolved_by_the_host(backend: Constructor) {
    const RESOLVE: &str = r#"python3 -c 'import socket; print(socket.gethostbyname("a.example.test"))'"#;
    let backend = backend(None);
    let (instance, sockets) = create(&backend, egress_spec([])).await;
    let (mut names, _serving) = serve_names(sockets.resolver);
    assert_eq!(shell(&instance, RESOLVE).await.1, "198.18.0.7\n");
    assert_eq!(shell(&instance, "getent ahostsv4 localhost | head -c 9").await.1, "127.0.0.1");
    let name = timeout(TIMEOUT, names.recv()).await.expect("in time").expect("a name");
    assert_eq!(name, b"a\x07example\x04test");
    assert!(names.is_empty() || names.recv().await == Some(name), "no other name, such as localhost, was asked for");
    backend.end().await;
}

/// Makes an image with bash, cat and getent of this host, and a hostile `/etc`.
fn image(directory: &Path, target: &Path) {
    let programs = ["/bin/bash", "/bin/cat", "/usr/bin/getent"];
    let needed = std::process::Command::new("ldd").args(programs).output().expect("run ldd").stdout;
    let needed = String::from_utf8(needed).expect("ldd prints text");
    let libraries = needed.split_whitespace().filter(|field| field.starts_with('/') && !field.ends_with(':'));
    for file in libraries.chain(programs) {
        let copy = directory.join(file.trim_start_matches('/'));
        std::fs::create_dir_all(copy.parent().expect("a parent")).expect("make a directory");
        std::fs::copy(file, copy).expect("copy a file");
    }
    let etc = directory.join("etc");
    std::fs::create_dir(&etc).expect("make /etc");
    std::fs::write(etc.join("motd"), "of the image\n").expect("write a file");
    symlink("motd", etc.join("link")).expect("make a link");
    symlink(target, etc.join("resolv.conf")).expect("make a link");
    std::fs::create_dir(etc.join("nsswitch.conf")).expect("make a directory");
}

pub(super) async fn image_has_the_name_resolution_of_the_sandbox(backend: Constructor) {
    let (directory, target) =
        (tempfile::tempdir().expect("a directory"), tempfile::NamedTempFile::new().expect("file"));
    image(directory.path(), target.path());
    let backend = backend(None);
    let spec = Spec { root: Root::Directory(directory.path().to_owned()), ..egress_spec([]) };
    let (instance, sockets) = create(&backend, spec).await;
    let (_names, _serving) = serve_names(sockets.resolver);
    assert_eq!(shell(&instance, "cat /etc/motd /etc/link").await.1, "of the image\nof the image\n");
    let resolver = "nameserver 127.0.0.1\noptions timeout:5 attempts:2\n";
    assert_eq!(shell(&instance, "cat /etc/resolv.conf").await.1, resolver);
    assert!(shell(&instance, "getent ahostsv4 b.example.test").await.1.starts_with("198.18.0.7 "));
    assert!(shell(&instance, "getent ahostsv4 localhost").await.1.starts_with("127.0.0.1 "));
    assert_eq!(shell(&instance, "echo x > /etc/resolv.conf || echo x > /etc/motd").await.0, ExitStatus::Exited(1));
    assert_eq!(std::fs::read(target.path()).expect("read"), b"", "the link of the image was not followed");
    assert!(!directory.path().join("etc/hosts").exists(), "the image was not changed");
    backend.end().await;
}

pub(super) async fn nothing_is_reachable_without_egress(backend: Constructor) {
    let backend = backend(None);
    let Created { instance, egress, .. } =
        backend.create(InstanceRequest::new(spec())).await.expect("create an instance");
    assert!(egress.is_none());
    for (ip, port) in [("198.18.0.1", 80), ("198.18.0.1", 443), ("127.0.0.1", 80), ("127.0.0.1", 3128)] {
        assert!(!connects(&instance, ip, port).await, "{ip}:{port} must be unreachable");
    }
    assert_eq!(instance.open_egress_port(8443).await.err(), Some(EgressPortError::NotAllowed(8443)));
    assert_eq!(shell(&instance, "grep -c nameserver /etc/resolv.conf").await.1, "0\n");
    backend.end().await;
}

pub(super) async fn nothing_is_reachable_if_not_served(backend: Constructor) {
    let backend = backend(None);
    let (instance, sockets) = create(&backend, egress_spec([])).await;
    assert!(connects(&instance, "198.18.0.1", 443).await, "the listener is open");
    drop(sockets);
    // The process that has passed the sockets may still be about to close its own descriptors.
    let closed = async { while connects(&instance, "198.18.0.1", 443).await {} };
    timeout(TIMEOUT, closed).await.expect("no process has the sockets");
    for (ip, port) in [("198.18.0.1", 80), ("198.18.0.1", 443), ("127.0.0.1", 53), ("127.0.0.1", 3128)] {
        assert!(!connects(&instance, ip, port).await, "{ip}:{port} must be unreachable");
    }
    backend.end().await;
}

pub(super) async fn guest_gets_no_socket_and_no_port_of_egress(backend: Constructor) {
    // Prints the addresses that could be bound, whatever options the guest uses.
    const BIND: &str = r#"import socket, sys
for option in [None, socket.SO_REUSEADDR, socket.SO_REUSEPORT]:
    for kind, ip, port in [(socket.SOCK_DGRAM, ip, 53) for ip in ("127.0.0.1", "0.0.0.0")] + [
        (socket.SOCK_STREAM, ip, port) for ip in ("127.0.0.1", "0.0.0.0") for port in (53, 80, 443, 3128, 3129)
    ] + [(socket.SOCK_STREAM, "198.18.0.1", port) for port in (80, 443)]:
        attempt = socket.socket(socket.AF_INET, kind)
        if option:
            attempt.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            attempt.bind((ip, port))
            print(ip, port, kind)
        except OSError as error:
            if error.errno != 98:
                print(error)
control = socket.socket()
control.bind(("127.0.0.1", 81))
print("done")"#;
    const LIST: &str = "ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c socket:";
    let backend = backend(None);
    let (instance, sockets) = create(&backend, egress_spec([])).await;
    let (_, output) = shell(&instance, &format!("python3 -c '{BIND}'")).await;
    assert_eq!(output, "done\n");
    assert_eq!(shell(&instance, LIST).await.1, "0\n");
    // With a socket of its own, to show that the list would contain one.
    assert_ne!(shell(&instance, &format!("exec 3<>/dev/tcp/127.0.0.1/80; {LIST}")).await.1, "0\n");
    drop(sockets);
    backend.end().await;
}

pub(super) async fn egress_ports_are_opened_in_a_running_instance(backend: Constructor) {
    let backend = backend(None);
    let (instance, sockets) = create(&backend, egress_spec([PORT_OF_SPEC])).await;
    assert!(!connects(&instance, "198.18.0.2", LIVE_PORT).await, "the port is closed");
    let listener = instance.open_egress_port(LIVE_PORT).await.expect("open a port");
    for open in [LIVE_PORT, PORT_OF_SPEC, 443] {
        assert_eq!(instance.open_egress_port(open).await.err(), Some(EgressPortError::AlreadyOpen(open)));
    }
    dial(&instance, "198.18.0.2:22", listener).await;
    for port in [0, 53, PROXY_PORT, MIRROR_PORT] {
        assert_eq!(instance.open_egress_port(port).await.err(), Some(EgressPortError::NotAllowed(port)));
    }
    let server = "import socket, time; s = socket.create_server((\"\", 5432)); print(1, flush=True); time.sleep(60)";
    let mut process = instance.spawn(["python3", "-c", server].map(Into::into).to_vec()).expect("start Python");
    let mut is_listening = [0; 2];
    timeout(TIMEOUT, process.stdout.read_exact(&mut is_listening)).await.expect("in time").expect("read");
    let refused = instance.open_egress_port(5432).await.expect_err("the guest uses the port");
    assert_eq!(refused, EgressPortError::InUse(5432));
    assert_eq!(refused.to_string(), "a process in the sandbox listens on port 5432");
    let mut opened = Vec::new();
    while opened.len() < MAX_EGRESS_PORTS - 2 {
        let port = 6000 + u16::try_from(opened.len()).expect("a port");
        opened.push(instance.open_egress_port(port).await.expect("open a port"));
    }
    assert_eq!(instance.open_egress_port(7000).await.err(), Some(EgressPortError::TooMany));
    drop(instance.open_egress_port(LIVE_PORT).await.expect("open a port again"));
    instance.stop().await;
    assert_eq!(instance.open_egress_port(LIVE_PORT).await.err(), Some(EgressPortError::SandboxLost));
    drop(sockets);
    backend.end().await;
}

pub(super) async fn egress_sockets_work_after_their_server_died(backend: Constructor) {
    let (second, adopted, _directory) = adopt_after_death(backend).await;
    let (instance, mut sockets) = (adopted.instance, adopted.egress.expect("sockets"));
    for address in ["198.18.0.1:80", "198.18.0.1:443", "198.18.0.1:8443", "198.18.0.1:22"] {
        let port = address.rsplit_once(':').expect("a port").1.parse().expect("a port");
        dial(&instance, address, take(&mut sockets.transparent, port)).await;
    }
    assert_eq!(sockets.transparent.len(), 0);
    let (_names, _serving) = serve_names(sockets.resolver);
    assert!(shell(&instance, "getent ahostsv4 example.test").await.1.starts_with("198.18.0.7 "));
    instance.stop().await;
    second.end().await;
}
