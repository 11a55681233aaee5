//! The network of a server's sandbox: its running egress, and reports of the hosts that it was refused.

use std::io;
use std::sync::Arc;

use ringfence_backend::EgressPorts;
use ringfence_core::sync::Mutex;
use ringfence_core::{AuditEvent, AuditKind, EgressSockets};
use ringfence_egress::{
    Decision, DecisionLog, Egress, EgressSettings, Policy, RefusedHosts, Remedy, Rule, SandboxCredentials,
};
use ringfence_entries::ServerEntry;
use ringfence_store::Audit;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::stderr_tail::StderrTail;

/// Maximum number of decisions that wait to be reported.
const MAX_PENDING_DECISIONS: usize = 64;

/// The recipients of reports about refused hosts.
pub(crate) enum RefusalReport {
    /// The standard error tail of a server, and the audit.
    Server { name: String, uuid: String, stderr_tail: Arc<StderrTail>, audit: Audit },
    /// The audit. Which server in a shared sandbox was refused is not known.
    SharedSandbox { server: String, audit: Audit },
    /// The failure of an installation.
    Installation(Arc<StderrTail>),
}

/// The parameters of a sandbox's egress.
pub(crate) struct ServerEgress {
    pub(crate) rules: Vec<Rule>,
    pub(crate) credentials: Option<Arc<SandboxCredentials>>,
    pub(crate) report: RefusalReport,
}

/// The running egress of a sandbox. It ends when this value is dropped.
pub(crate) struct SandboxNetwork {
    egress: Egress,
    refused: Arc<Mutex<RefusedHosts>>,
    remedy: Remedy,
    _reporter: AbortOnDropHandle<()>,
}

impl RefusalReport {
    pub(crate) fn of_server(entry: &ServerEntry, stderr_tail: &Arc<StderrTail>, audit: &Audit) -> Self {
        let (name, uuid) = (entry.name.clone(), entry.uuid.clone());
        Self::Server { name, uuid, stderr_tail: Arc::clone(stderr_tail), audit: audit.clone() }
    }

    fn remedy(&self) -> Remedy {
        match self {
            Self::Server { name, .. } | Self::SharedSandbox { server: name, .. } => Remedy::Server(name.clone()),
            // The failure of the installation names the setting.
            Self::Installation(_) => Remedy::default(),
        }
    }

    fn report(&self, refusal: &Decision) {
        let event = || {
            AuditEvent::new(AuditKind::NetworkRefused, refusal.reason)
                .with("host", refusal.host.as_ref().map(ToString::to_string))
                .with("port", refusal.port)
                .with("secret", refusal.secret.clone())
        };
        match self {
            Self::Server { name, uuid, stderr_tail, audit } => {
                audit.record(event().with("server", name.as_str()).with("uuid", uuid.as_str()));
                stderr_tail.add_line(&format!("ringfence: {}", refusal.describe(&self.remedy())));
            }
            Self::SharedSandbox { audit, .. } => audit.record(event().with("shared", true)),
            Self::Installation(tail) => {
                let host = refusal.host.as_ref().map_or_else(String::new, ToString::to_string);
                let port = refusal.port.map_or_else(String::new, |port| format!(":{port}"));
                tail.add_line(&format!("egress to {host}{port}: {}", refusal.reason));
            }
        }
    }
}

impl SandboxNetwork {
    /// Starts to serve the sockets of a sandbox.
    pub(super) fn start(sockets: EgressSockets, egress: ServerEgress) -> io::Result<Self> {
        let ServerEgress { rules, credentials, report } = egress;
        let (log, decisions) = DecisionLog::bounded(MAX_PENDING_DECISIONS);
        let remedy = report.remedy();
        let settings =
            EgressSettings { remedy: remedy.clone(), credentials, ..EgressSettings::new(Policy { rules }, log) };
        let egress = Egress::start(sockets, settings)?;
        let refused = Arc::default();
        let reporter = tokio::spawn(report_refusals(decisions, Arc::clone(&refused), report));
        Ok(Self { egress, refused, remedy, _reporter: AbortOnDropHandle::new(reporter) })
    }

    /// Adds rules until the sandbox ends, and returns all rules. Hosts that are refused from now on are reported again.
    pub(super) async fn allow(&self, rules: Vec<Rule>, ports: &EgressPorts) -> Vec<Rule> {
        for rule in rules {
            if let Some(port) = rule.port().filter(|port| !self.egress.ports().contains(port)) {
                let opened = ports.open(port).await.map_err(|error| error.to_string());
                let served =
                    opened.and_then(|socket| self.egress.add_listener(socket).map_err(|error| error.to_string()));
                if let Err(error) = served {
                    tracing::warn!("programs cannot connect to port {port} of a server's sandbox: {error}");
                }
            }
            if !self.egress.rules().contains(&rule) {
                self.egress.allow(rule);
            }
        }
        *self.refused.lock() = RefusedHosts::default();
        self.egress.rules()
    }

    /// Returns a line for each host that was refused.
    pub(super) fn refused_hosts(&self) -> Vec<String> {
        self.refused.lock().lines(&self.remedy)
    }
}

async fn report_refusals(
    mut decisions: mpsc::Receiver<Decision>,
    refused: Arc<Mutex<RefusedHosts>>,
    report: RefusalReport,
) {
    while let Some(decision) = decisions.recv().await {
        let new = refused.lock().add(&decision).cloned();
        if let Some(host) = new {
            report.report(&host);
        }
    }
}
