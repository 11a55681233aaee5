//! The state that all connections of one sandbox share.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use ringfence_core::sync::Mutex;

use crate::approvals::{ApprovalGate, NotApproved};
use crate::decision::{Decision, DecisionLog};
use crate::live_policy::LivePolicy;
use crate::name_lookup::NameLookup;
use crate::name_table::NameTable;
use crate::refusal::Refusal;
use crate::remedy::Remedy;
use crate::rules::{Denial, Host, HostPort, Policy, Rule};
use crate::secrets::SandboxCredentials;

/// The policy, names, limits and log of one sandbox.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) policy: LivePolicy,
    pub(crate) names: NameTable,
    pub(crate) limits: Limits,
    pub(crate) lookup: NameLookup,
    pub(crate) log: DecisionLog,
    /// Number of the current report: each names every refused host, also one that was in the last report.
    pub(crate) report: AtomicU64,
    pub(crate) remedy: Mutex<Remedy>,
    pub(crate) approvals: Option<ApprovalGate>,
    /// `None` if the guest trusts no certificate authority of the egress.
    pub(crate) credentials: Option<Arc<SandboxCredentials>>,
    pub(crate) lost_secret_hosts: Vec<Rule>,
}

impl Context {
    pub(crate) fn new(policy: Policy, log: DecisionLog) -> Self {
        Self {
            policy: LivePolicy::new(policy),
            names: NameTable::new(),
            limits: Limits::default(),
            lookup: NameLookup::system(),
            log,
            report: AtomicU64::default(),
            remedy: Mutex::default(),
            approvals: None,
            credentials: None,
            lost_secret_hosts: Vec::new(),
        }
    }

    /// Returns the rule that allows a destination. Without a rule, waits for the approval of the user if there are
    /// approvals.
    pub(crate) async fn authorize(&self, target: &HostPort) -> Result<Rule, Refusal> {
        let denial = match self.policy.snapshot().find_rule(target) {
            Ok(rule) => return Ok(rule.clone()),
            Err(denial) => denial,
        };
        match (&self.approvals, denial) {
            (Some(approvals), Denial::NoRule) => match approvals.wait(&self.policy, target).await {
                Ok(rule) => Ok(rule),
                Err(NotApproved::Refused) => Err(Refusal::NotApproved),
                Err(NotApproved::NotAsked) => Err(denial.into()),
            },
            _ => Err(denial.into()),
        }
    }

    /// Returns whether a name may have an address: some port of it is allowed, or the user may be asked.
    pub(crate) fn may_resolve(&self, host: &Host) -> bool {
        let can_ask = || self.approvals.as_ref().is_some_and(|approvals| approvals.can_ask(host));
        self.policy.snapshot().has_rule_for(host) || can_ask()
    }

    /// Records the refusal of a connection or request.
    pub(crate) fn record_refusal(&self, decision: Decision, refusal: &Refusal) {
        self.log.record(Decision { is_allowed: false, reason: refusal.code(), ..decision });
    }
}

/// Limits on the connections of one sandbox, and their timeouts.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// Maximum number of connections, over all listeners.
    pub(crate) max_connections: usize,
    /// Maximum number of TCP connections to the resolver.
    pub(crate) max_resolver_connections: usize,
    /// Timeout for one query to the resolver over TCP.
    pub(crate) query_timeout: Duration,
    /// Timeout for a request head.
    pub(crate) head_timeout: Duration,
    /// Timeout for resolving a name.
    pub(crate) resolve_timeout: Duration,
    /// Timeout for connecting to one address.
    pub(crate) connect_timeout: Duration,
    /// Timeout for a TLS `ClientHello`.
    pub(crate) hello_timeout: Duration,
    /// Maximum time without traffic in either direction.
    pub(crate) idle_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 128,
            max_resolver_connections: 16,
            query_timeout: Duration::from_secs(10),
            head_timeout: Duration::from_secs(15),
            resolve_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            hello_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(300),
        }
    }
}
