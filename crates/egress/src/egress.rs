//! The egress of one sandbox: serves its [`EgressSockets`] until the handle is dropped.

mod sandbox_task;
#[cfg(test)]
mod tests;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringfence_core::EgressSockets;
use ringfence_core::sync::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::approvals::{ApprovalGate, Approvals};
use crate::context::Context;
use crate::decision::DecisionLog;
use crate::mirror::Mirror;
use crate::remedy::Remedy;
use crate::rules::{Policy, Rule};
use crate::secrets::SandboxCredentials;
use sandbox_task::{AddedListeners, Purpose, SandboxTask};

/// Maximum number of listeners of a sandbox.
const MAX_LISTENERS: usize = 64;

/// The parameters of a sandbox's egress.
#[derive(Debug)]
pub struct EgressSettings {
    pub policy: Policy,
    pub log: DecisionLog,
    /// The recommendation in the texts of refusals.
    pub remedy: Remedy,
    /// If set, connections to hosts without a rule wait for the approval of the user.
    pub approvals: Option<Approvals>,
    /// Serves the sandbox's mirror of package registries. Without it, connections to its port are closed.
    pub mirror: Option<Mirror>,
    /// The certificate authority and the secrets. Without them, hosts whose rules have methods or paths are refused.
    pub credentials: Option<Arc<SandboxCredentials>>,
    /// The hosts of secrets that the sandbox had under an earlier process and no longer has. TLS to them is refused,
    /// unless another secret has the same host.
    pub lost_secret_hosts: Vec<Rule>,
}

impl EgressSettings {
    pub fn new(policy: Policy, log: DecisionLog) -> Self {
        Self {
            policy,
            log,
            remedy: Remedy::default(),
            approvals: None,
            mirror: None,
            credentials: None,
            lost_secret_hosts: Vec::new(),
        }
    }
}

/// The running egress of one sandbox. Cheap to clone. When the last clone is dropped, all connections are closed.
#[derive(Debug, Clone)]
pub struct Egress(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    context: Arc<Context>,
    added: Arc<AddedListeners>,
    runtime: Handle,
    task: JoinHandle<()>,
    mirror_task: Option<JoinHandle<()>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(task) = &self.mirror_task {
            task.abort();
        }
    }
}

impl Egress {
    /// Starts to serve the sockets. Must be called in a tokio runtime.
    pub fn start(sockets: EgressSockets, settings: EgressSettings) -> io::Result<Self> {
        let EgressSettings { policy, log, remedy, approvals, mirror, credentials, lost_secret_hosts } = settings;
        let approvals = approvals.map(ApprovalGate::new);
        let context = Context {
            remedy: Mutex::new(remedy),
            approvals,
            credentials,
            lost_secret_hosts,
            ..Context::new(policy, log)
        };
        Self::start_with_context(sockets, context, mirror)
    }

    pub(crate) fn start_with_context(
        sockets: EgressSockets,
        context: Context,
        mirror: Option<Mirror>,
    ) -> io::Result<Self> {
        let EgressSockets { resolver, resolver_tcp, proxy, mirror: mirror_listener, transparent } = sockets;
        let context = Arc::new(context);
        let added = Arc::<AddedListeners>::default();
        let mut task = SandboxTask::new(Arc::clone(&context), resolver, Arc::clone(&added))?;
        task.add(resolver_tcp, Purpose::Resolver)?;
        task.add(proxy, Purpose::Proxy)?;
        let mirror_task = if let Some(mirror) = mirror {
            let log = context.log.clone();
            Some(tokio::spawn(async move { drop(mirror.serve(mirror_listener, log).await) }))
        } else {
            task.add(mirror_listener, Purpose::Mirror)?;
            None
        };
        for listener in transparent {
            task.add(listener, Purpose::Transparent)?;
        }
        let task = tokio::spawn(task.run());
        Ok(Self(Arc::new(Inner { context, added, runtime: Handle::current(), task, mirror_task })))
    }

    /// Adds a rule. New connections, requests and lookups use it immediately.
    pub fn allow(&self, rule: Rule) {
        self.0.context.policy.allow(rule);
    }

    /// Sets the recommendation in the texts of later refusals.
    pub fn set_remedy(&self, remedy: Remedy) {
        *self.0.context.remedy.lock() = remedy;
    }

    /// Starts a new report of refused hosts, as for a new call: lookups that were refused before are recorded again.
    pub fn start_report(&self) {
        self.0.context.report.fetch_add(1, Ordering::Relaxed);
    }

    /// Enables or disables questions about hosts without a rule. Without questions such hosts have no address.
    pub fn enable_questions(&self, is_enabled: bool) {
        if let Some(approvals) = &self.0.context.approvals {
            approvals.enable(is_enabled);
        }
    }

    /// Returns the rules that apply now.
    pub fn rules(&self) -> Vec<Rule> {
        self.0.context.policy.snapshot().rules.clone()
    }

    /// Serves one more listener for transparent connections, for a port that a new rule names.
    pub fn add_listener(&self, listener: TcpListener) -> io::Result<()> {
        let _runtime = self.0.runtime.enter();
        self.0.added.add(listener)
    }

    /// Returns the ports with a listener for transparent connections.
    pub fn ports(&self) -> Vec<u16> {
        self.0.added.ports()
    }
}

/// Opens the sockets of a sandbox on loopback, with free ports.
#[cfg(test)]
pub(crate) fn loopback_sockets(transparent: Vec<TcpListener>) -> EgressSockets {
    let address = (std::net::Ipv4Addr::LOCALHOST, 0);
    let listen = || TcpListener::bind(address).unwrap();
    let resolver = std::net::UdpSocket::bind(address).unwrap();
    EgressSockets { resolver, resolver_tcp: listen(), proxy: listen(), mirror: listen(), transparent }
}
