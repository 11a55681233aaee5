//! The network of an instance: its running egress, the hosts that it was refused, and questions about other hosts.
//!
//! The egress starts with the instance, also in the pool. The session that owns it is attached when the instance is
//! claimed; before, no code of a guest runs.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use ringfence_config::NetworkSettings;
use ringfence_core::{AuditEvent, AuditKind, EgressSockets, Principal, SessionId};
use ringfence_egress::{
    ApprovalRequest, Approvals, Decision, DecisionLog, Egress, EgressSettings, Policy, RefusedHosts, Remedy, Rule,
    SandboxCredentials, Source,
};
use ringfence_store::Audit;
use tokio::sync::mpsc;

/// Maximum number of unread decisions. They are read while the session exists, so only a flood loses some.
const MAX_UNREAD_DECISIONS: usize = 256;

/// Maximum number of connections that wait for a person.
const MAX_OPEN_QUESTIONS: usize = 16;

/// Handles the questions of one call. Without it, or if it is full, the connection is refused.
pub type QuestionSender = mpsc::Sender<ApprovalRequest>;

/// The secrets of an instance, as far as its egress knows them.
#[derive(Default)]
pub(crate) struct InstanceSecrets {
    pub(crate) credentials: Option<Arc<SandboxCredentials>>,
    /// The hosts whose secrets were lost with an earlier server, or removed since.
    pub(crate) lost_hosts: Vec<Rule>,
}

/// The network of an instance, which may have none.
#[derive(Default)]
pub(crate) struct InstanceNetwork(Option<Running>);

struct Running {
    egress: Egress,
    decisions: mpsc::Receiver<Decision>,
    questions: Option<mpsc::Receiver<ApprovalRequest>>,
    /// The hosts that were refused since the last call ended.
    refused: RefusedHosts,
    owner: Option<Owner>,
}

/// The session that audit events are about.
struct Owner {
    audit: Audit,
    principal: Principal,
    session: SessionId,
}

impl InstanceNetwork {
    /// Starts to serve the sockets of an instance, if it has any.
    pub(crate) fn start(
        sockets: Option<EgressSockets>,
        rules: Vec<Rule>,
        settings: &NetworkSettings,
        secrets: InstanceSecrets,
    ) -> io::Result<Self> {
        let Some(sockets) = sockets else { return Ok(Self::default()) };
        let mirror = settings.mirror.clone().filter(|_| settings.packages);
        let (log, decisions) = DecisionLog::bounded(MAX_UNREAD_DECISIONS);
        let (approvals, questions) = settings.ask.then(|| Approvals::bounded(MAX_OPEN_QUESTIONS)).unzip();
        let settings = EgressSettings {
            approvals,
            mirror,
            credentials: secrets.credentials,
            lost_secret_hosts: secrets.lost_hosts,
            ..EgressSettings::new(Policy { rules }, log)
        };
        let egress = Egress::start(sockets, settings)?;
        Ok(Self(Some(Running { egress, decisions, questions, refused: RefusedHosts::default(), owner: None })))
    }

    /// Sets the session that the instance belongs to.
    pub(crate) fn attach(&mut self, audit: &Audit, principal: &Principal, session: &SessionId) {
        if let Some(running) = &mut self.0 {
            running.egress.set_remedy(Remedy::Session(session.to_string()));
            running.owner =
                Some(Owner { audit: audit.clone(), principal: principal.clone(), session: session.clone() });
        }
    }

    pub(crate) fn egress(&self) -> Option<Egress> {
        self.0.as_ref().map(|running| running.egress.clone())
    }

    /// Reads decisions, and passes questions on to the current call. Never ends; cancel-safe.
    pub(crate) async fn collect(&mut self, call: Option<&QuestionSender>) -> Infallible {
        let Some(running) = &mut self.0 else { return std::future::pending().await };
        running.egress.enable_questions(call.is_some());
        let Running { decisions, questions, .. } = running;
        loop {
            let question = async {
                match questions {
                    Some(questions) => questions.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(decision) = decisions.recv() => {
                    record(&mut running.refused, running.owner.as_ref(), &decision);
                }
                // Dropping a question refuses the connection.
                Some(question) = question => if let Some(call) = call {
                    let _ = call.try_send(question);
                },
                else => return std::future::pending().await,
            }
        }
    }

    /// Returns the hosts that were refused until now. The egress records a decision before the guest receives it,
    /// so those of a call that has ended are included.
    pub(crate) fn take_refused(&mut self) -> RefusedHosts {
        let Some(running) = &mut self.0 else { return RefusedHosts::default() };
        while let Ok(decision) = running.decisions.try_recv() {
            record(&mut running.refused, running.owner.as_ref(), &decision);
        }
        running.egress.start_report();
        std::mem::take(&mut running.refused)
    }
}

fn record(refused: &mut RefusedHosts, owner: Option<&Owner>, decision: &Decision) {
    if decision.source == Source::Mirror {
        record_package(owner, decision);
    } else {
        add_refusal(refused, owner, decision);
    }
}

/// Records a request of the package mirror. The guest has chosen the package, and the operator the registry, so a failure
/// is no refusal of a host.
fn record_package(owner: Option<&Owner>, decision: &Decision) {
    let Some(Owner { audit, principal, session }) = owner else { return };
    let outcome = if decision.is_allowed { "ok" } else { decision.reason };
    let event = AuditEvent::new(AuditKind::PackageRequested, outcome)
        .by(principal, Some(session))
        .with("package", decision.package.clone())
        .with("host", decision.host.as_ref().map(ToString::to_string));
    audit.record(event);
}

/// Adds a refusal, and records the first one of each host.
fn add_refusal(refused: &mut RefusedHosts, owner: Option<&Owner>, decision: &Decision) {
    let Some(refusal) = refused.add(decision) else { return };
    let Some(Owner { audit, principal, session }) = owner else { return };
    let event = AuditEvent::new(AuditKind::NetworkRefused, refusal.reason)
        .by(principal, Some(session))
        .with("host", refusal.host.as_ref().map(ToString::to_string))
        .with("port", refusal.port)
        .with("secret", refusal.secret.clone());
    audit.record(event);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_for_a_package_is_in_the_audit_and_no_refusal() {
        let (audit, mut refused) = (Audit::in_memory(), RefusedHosts::default());
        let session = SessionId::from_caller("session-1");
        let owner = Owner { audit: audit.clone(), principal: Principal::named("ci"), session: session.clone() };
        let decision = |is_allowed, reason, source| Decision {
            is_allowed,
            reason,
            source,
            host: Some("registry.example".parse().unwrap()),
            port: Some(443),
            package: Some("pypi/foo".into()),
            ..Decision::default()
        };
        record(&mut refused, Some(&owner), &decision(true, "allowed", Source::Mirror));
        record(&mut refused, Some(&owner), &decision(false, "package-missing", Source::Mirror));
        assert!(refused.is_empty());
        record(&mut refused, Some(&owner), &decision(false, "no-rule", Source::Proxy));
        assert!(!refused.is_empty());
        let events = audit.collected();
        let outcomes: Vec<_> = events.iter().map(|event| (event.kind.name(), &*event.outcome)).collect();
        let package = |outcome| ("package_requested", outcome);
        assert_eq!(outcomes, [package("ok"), package("package-missing"), ("network_refused", "no-rule")]);
        assert_eq!((events[0].session.as_ref(), &events[0].detail["package"]), (Some(&session), &"pypi/foo".into()));
    }
}
