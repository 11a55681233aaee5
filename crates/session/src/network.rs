//! The network of an instance: its running egress, the hosts that it was refused, and questions about other hosts.
//!
//! The egress starts with the instance, also in the pool. The session that owns it is attached when the instance is
//! claimed; before, no code of a guest runs.

use std::collections::BTreeMap;
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
    calls: RunningCalls,
    owner: Option<Owner>,
}

/// The calls that run, and the hosts that were refused. A host is reported by each call that ran when it was refused,
/// because it is unknown which call started the process that tried to reach the host.
#[derive(Default)]
struct RunningCalls {
    /// Refused while no call ran. The next call reports them.
    refused: RefusedHosts,
    running: BTreeMap<u64, RunningCall>,
}

#[derive(Default)]
struct RunningCall {
    refused: RefusedHosts,
    questions: Option<QuestionSender>,
}

impl RunningCalls {
    /// Adds a refusal. Returns whether it is the first of its host.
    fn add(&mut self, decision: &Decision) -> bool {
        if self.running.is_empty() {
            return self.refused.add(decision).is_some();
        }
        self.running.values_mut().map(|call| call.refused.add(decision).is_some()).fold(false, |any, new| any | new)
    }

    /// The oldest call that handles questions.
    fn questions(&self) -> Option<&QuestionSender> {
        self.running.values().find_map(|call| call.questions.as_ref())
    }
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
        Ok(Self(Some(Running { egress, decisions, questions, calls: RunningCalls::default(), owner: None })))
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

    /// Begins a call. `questions` handles its questions about hosts.
    pub(crate) fn begin_call(&mut self, number: u64, questions: Option<QuestionSender>) {
        let Some(Running { egress, calls, .. }) = &mut self.0 else { return };
        if !calls.running.is_empty() {
            egress.start_report();
        }
        let refused = std::mem::take(&mut calls.refused);
        calls.running.insert(number, RunningCall { refused, questions });
    }

    /// Reads decisions, and passes questions on to a call. Never ends; cancel-safe.
    pub(crate) async fn collect(&mut self) -> Infallible {
        let Some(running) = &mut self.0 else { return std::future::pending().await };
        running.egress.enable_questions(running.calls.questions().is_some());
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
                    record(&mut running.calls, running.owner.as_ref(), &decision);
                }
                // Dropping a question refuses the connection.
                Some(question) = question => if let Some(call) = running.calls.questions() {
                    let _ = call.try_send(question);
                },
                else => return std::future::pending().await,
            }
        }
    }

    /// Ends a call. Returns the hosts that were refused while it ran. The egress records a decision before the guest
    /// receives it, so those of the call are included.
    pub(crate) fn end_call(&mut self, number: u64) -> RefusedHosts {
        let Some(running) = &mut self.0 else { return RefusedHosts::default() };
        while let Ok(decision) = running.decisions.try_recv() {
            record(&mut running.calls, running.owner.as_ref(), &decision);
        }
        running.egress.start_report();
        running.calls.running.remove(&number).map(|call| call.refused).unwrap_or_default()
    }
}

fn record(calls: &mut RunningCalls, owner: Option<&Owner>, decision: &Decision) {
    if decision.source == Source::Mirror {
        record_package(owner, decision);
    } else {
        add_refusal(calls, owner, decision);
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
fn add_refusal(calls: &mut RunningCalls, owner: Option<&Owner>, decision: &Decision) {
    if !calls.add(decision) {
        return;
    }
    let Some(Owner { audit, principal, session }) = owner else { return };
    let event = AuditEvent::new(AuditKind::NetworkRefused, decision.reason)
        .by(principal, Some(session))
        .with("host", decision.host.as_ref().map(ToString::to_string))
        .with("port", decision.port)
        .with("secret", decision.secret.clone());
    audit.record(event);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_for_a_package_is_in_the_audit_and_no_refusal() {
        let (audit, mut calls) = (Audit::in_memory(), RunningCalls::default());
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
        record(&mut calls, Some(&owner), &decision(true, "allowed", Source::Mirror));
        record(&mut calls, Some(&owner), &decision(false, "package-missing", Source::Mirror));
        assert!(calls.refused.is_empty());
        record(&mut calls, Some(&owner), &decision(false, "no-rule", Source::Proxy));
        assert!(!calls.refused.is_empty());
        let events = audit.collected();
        let outcomes: Vec<_> = events.iter().map(|event| (event.kind.name(), &*event.outcome)).collect();
        let package = |outcome| ("package_requested", outcome);
        assert_eq!(outcomes, [package("ok"), package("package-missing"), ("network_refused", "no-rule")]);
        assert_eq!((events[0].session.as_ref(), &events[0].detail["package"]), (Some(&session), &"pypi/foo".into()));
    }

    #[test]
    fn refused_host_is_reported_by_every_call_that_runs_and_audited_once() {
        let (audit, mut calls) = (Audit::in_memory(), RunningCalls::default());
        let owner = Owner {
            audit: audit.clone(),
            principal: Principal::named("ci"),
            session: SessionId::from_caller("session-1"),
        };
        calls.running = [(1, RunningCall::default()), (2, RunningCall::default())].into();
        let decision =
            Decision { reason: "no-rule", host: Some("host.example".parse().unwrap()), ..Decision::default() };
        record(&mut calls, Some(&owner), &decision);
        record(&mut calls, Some(&owner), &decision);
        assert!(calls.refused.is_empty() && calls.running.values().all(|call| !call.refused.is_empty()));
        assert_eq!(audit.collected().len(), 1);
    }
}
