//! The rules of `ringfence-egress` on the sockets of an instance: what the guest reaches, and what it does not.

use std::net::Ipv4Addr;

use ringfence_backend::{Backend, Created, ExitStatus, Instance, InstanceRequest};
use ringfence_core::EgressSockets;
use ringfence_egress::{DecisionLog, Egress, EgressSettings, Policy};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::Constructor;
use super::adoption::adopt_after_death;
use super::cases::shell;
use super::egress::egress_spec;

/// A server on the host that writes a line to each connection.
struct Greeter {
    port: u16,
    _task: AbortOnDropHandle<()>,
}

impl Greeter {
    async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("listen");
        let port = listener.local_addr().expect("an address").port();
        let task = tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                let _ = connection.write_all(b"welcome\n").await;
            }
        });
        Self { port, _task: AbortOnDropHandle::new(task) }
    }
}

fn serve(sockets: EgressSockets, rules: &[String]) -> Egress {
    let policy = Policy::parse(rules.iter().map(String::as_str)).expect("valid rules");
    Egress::start(sockets, EgressSettings::new(policy, DecisionLog::bounded(64).0)).expect("serve the sockets")
}

/// Opens a tunnel of the proxy to `target`. Returns the status that the guest receives, and the server's first line.
async fn connect(instance: &Instance, target: &str) -> String {
    let command = format!(
        r#"exec 3<>/dev/tcp/127.0.0.1/3128
printf 'CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n' >&3
read -r version status reason <&3; echo -n $status
[ $status = 200 ] && {{ read -r empty <&3; read -r line <&3; echo -n " $line"; }}"#
    );
    shell(instance, &command).await.1
}

/// Whether a name has an address in the guest, which must be one of the range for names.
async fn resolves(instance: &Instance, name: &str) -> bool {
    let (status, output) = shell(instance, &format!("getent ahostsv4 {name}")).await;
    assert_eq!(status == ExitStatus::Exited(0), output.starts_with("198.18."), "{name}: {output}");
    !output.is_empty()
}

/// Checks rules for hosts, ports, private addresses and names, and a rule that is added later.
async fn check_rules(instance: &Instance, sockets: EgressSockets) -> Egress {
    let (allowed, other) = (Greeter::start().await, Greeter::start().await);
    let (port, other_port) = (allowed.port, other.port);
    let rules = [
        format!("127.0.0.1:{port}+private"),
        format!("localhost:{other_port}"),
        "one.example.test".into(),
        "*.many.example.test".into(),
    ];
    let egress = serve(sockets, &rules);
    assert_eq!(connect(instance, &format!("127.0.0.1:{port}")).await, "200 welcome");
    for (target, reason) in [
        (format!("127.0.0.1:{other_port}"), "no rule for the port"),
        (format!("127.0.0.2:{port}"), "no rule for the host"),
        (format!("localhost:{other_port}"), "its address is private"),
        ("169.254.169.254:80".into(), "no rule for the metadata service"),
        ("two.example.test:443".into(), "no rule for the name"),
    ] {
        assert_eq!(connect(instance, &target).await, "403", "{target}: {reason}");
    }
    for (name, is_allowed) in [
        ("one.example.test", true),
        ("a.b.many.example.test", true),
        ("many.example.test", false),
        ("two.example.test", false),
    ] {
        assert_eq!(resolves(instance, name).await, is_allowed, "{name}");
    }
    egress.allow(format!("127.0.0.1:{other_port}+private").parse().expect("a rule"));
    assert_eq!(connect(instance, &format!("127.0.0.1:{other_port}")).await, "200 welcome");
    egress
}

async fn create(backend: &Backend) -> (Instance, EgressSockets) {
    let created = backend.create(InstanceRequest::new(egress_spec([]))).await;
    let Created { instance, egress, .. } = created.expect("create an instance");
    (instance, egress.expect("sockets"))
}

pub(super) async fn egress_rules_apply_to_the_guest(backend: Constructor) {
    let backend = backend(None);
    let (instance, sockets) = create(&backend).await;
    drop(check_rules(&instance, sockets).await);
    assert_eq!(connect(&instance, "127.0.0.1:80").await, "", "the egress has ended");
    backend.end().await;
}

pub(super) async fn egress_rules_apply_after_the_server_died(backend: Constructor) {
    let (second, adopted, _directory) = adopt_after_death(backend).await;
    let (instance, sockets) = (adopted.instance, adopted.egress.expect("sockets"));
    let _egress = check_rules(&instance, sockets).await;
    instance.stop().await;
    second.end().await;
}
