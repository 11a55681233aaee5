//! Questions to the user about hosts without a rule.
//!
//! A connection to such a host waits for the reply. All connections to one host share one question. A refused host is
//! remembered for some time, so that a guest that retries does not cause the same question again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringfence_core::sync::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};

use crate::live_policy::LivePolicy;
use crate::rules::{AddressClass, Denial, Host, HostPort, Rule};

/// Maximum time for a reply. No reply is a refusal.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of connections of a sandbox that wait for replies.
const MAX_WAITING: usize = 32;
/// Maximum number of open questions of a sandbox.
const MAX_QUESTIONS: usize = 8;
/// Time in which a refused host causes no question.
const REFUSAL_MEMORY: Duration = Duration::from_secs(600);
/// Maximum number of refused hosts to remember. If there are more, the oldest is forgotten.
const MAX_REFUSED: usize = 256;

/// The sending half of a bounded channel of questions.
#[derive(Debug, Clone)]
pub struct Approvals(mpsc::Sender<ApprovalRequest>);

/// A question: may this sandbox connect to this host?
#[derive(Debug)]
pub struct ApprovalRequest {
    pub host: Host,
    /// The port of the connection that waits.
    pub port: Option<u16>,
    /// The reply. If it is dropped, the question cannot be asked, and the connection is refused.
    pub reply: oneshot::Sender<Approval>,
}

/// The reply to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approval {
    /// Allows the connections that wait for this reply.
    Once,
    /// Adds a rule for the host to the policy of the sandbox.
    Always,
    No,
}

impl Approvals {
    /// Creates a channel for at most `capacity` unread questions, at least one. If it is full, connections are refused.
    pub fn bounded(capacity: usize) -> (Self, mpsc::Receiver<ApprovalRequest>) {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        (Self(sender), receiver)
    }
}

/// The questions of one sandbox.
#[derive(Debug)]
pub(crate) struct ApprovalGate {
    approvals: Approvals,
    is_enabled: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: usize,
    questions: HashMap<Host, Arc<watch::Sender<Option<Reply>>>>,
    refused: HashMap<Host, Instant>,
}

/// The reply to the question of a connection to `port`.
#[derive(Debug, Clone, Copy)]
struct Reply {
    port: u16,
    approval: Approval,
}

/// Reason why a connection was not approved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotApproved {
    /// The user has refused the host, or has not replied in time.
    Refused,
    /// The user was not asked.
    NotAsked,
}

impl ApprovalGate {
    pub(crate) fn new(approvals: Approvals) -> Self {
        Self { approvals, is_enabled: AtomicBool::new(true), state: Mutex::default() }
    }

    /// Enables or disables questions.
    pub(crate) fn enable(&self, is_enabled: bool) {
        self.is_enabled.store(is_enabled, Ordering::Relaxed);
    }

    /// Returns whether a connection to a host without a rule may cause a question. The host is not asked for if it can
    /// only be in a private network, or if it was refused.
    pub(crate) fn can_ask(&self, host: &Host) -> bool {
        let is_enabled = self.is_enabled.load(Ordering::Relaxed) && !self.approvals.0.is_closed();
        is_enabled && is_askable(host) && !self.is_refused(host)
    }

    /// Waits for the approval of a destination without a rule; returns the rule that allows it.
    pub(crate) async fn wait(&self, policy: &LivePolicy, target: &HostPort) -> Result<Rule, NotApproved> {
        if self.is_refused(&target.host) {
            return Err(NotApproved::Refused);
        }
        if !self.can_ask(&target.host) {
            return Err(NotApproved::NotAsked);
        }
        let _waiting = Waiting::enter(self).ok_or(NotApproved::NotAsked)?;
        let rule: Rule = target.rule_text().parse().map_err(|_| NotApproved::NotAsked)?;
        let deadline = Instant::now() + REPLY_TIMEOUT;
        loop {
            let Reply { port, approval } = match self.join_or_open(&target.host)? {
                Role::Owner(question) => question.ask(policy, target, &rule, deadline).await?,
                Role::Follower(mut reply) => match timeout_at(deadline, reply.wait_for(Option::is_some)).await {
                    Ok(Ok(reply)) => match *reply {
                        Some(reply) => reply,
                        None => continue,
                    },
                    // The connection with the question has ended.
                    Ok(Err(_)) => continue,
                    Err(_) => return Err(NotApproved::Refused),
                },
            };
            match approval {
                Approval::No => return Err(NotApproved::Refused),
                Approval::Once if port == target.port => return Ok(rule),
                Approval::Once | Approval::Always => {}
            }
            // The reply was about another port, or has added a rule.
            match policy.snapshot().find_rule(target) {
                Ok(rule) => return Ok(rule.clone()),
                Err(Denial::NoRule) => {}
                Err(_) => return Err(NotApproved::NotAsked),
            }
        }
    }

    fn join_or_open(&self, host: &Host) -> Result<Role<'_>, NotApproved> {
        let mut state = self.state.lock();
        if let Some(reply) = state.questions.get(host) {
            return Ok(Role::Follower(reply.subscribe()));
        }
        if state.is_refused(host) {
            return Err(NotApproved::Refused);
        }
        if state.questions.len() >= MAX_QUESTIONS {
            return Err(NotApproved::NotAsked);
        }
        let reply = Arc::new(watch::Sender::new(None));
        state.questions.insert(host.clone(), Arc::clone(&reply));
        Ok(Role::Owner(Question { gate: self, host: host.clone(), reply }))
    }

    fn is_refused(&self, host: &Host) -> bool {
        self.state.lock().is_refused(host)
    }
}

impl State {
    fn is_refused(&self, host: &Host) -> bool {
        self.refused.get(host).is_some_and(|at| at.elapsed() < REFUSAL_MEMORY)
    }

    fn remember_refusal(&mut self, host: Host) {
        if self.refused.len() >= MAX_REFUSED {
            self.refused.retain(|_, at| at.elapsed() < REFUSAL_MEMORY);
        }
        if self.refused.len() >= MAX_REFUSED {
            let oldest = self.refused.iter().min_by_key(|(_, at)| **at).map(|(host, _)| host.clone());
            oldest.and_then(|oldest| self.refused.remove(&oldest));
        }
        self.refused.insert(host, Instant::now());
    }
}

enum Role<'a> {
    Owner(Question<'a>),
    Follower(watch::Receiver<Option<Reply>>),
}

/// An open question. When it is dropped, the connections that wait for its reply continue.
struct Question<'a> {
    gate: &'a ApprovalGate,
    host: Host,
    reply: Arc<watch::Sender<Option<Reply>>>,
}

impl Question<'_> {
    async fn ask(
        self,
        policy: &LivePolicy,
        target: &HostPort,
        rule: &Rule,
        deadline: Instant,
    ) -> Result<Reply, NotApproved> {
        let (reply, replied) = oneshot::channel();
        let request = ApprovalRequest { host: self.host.clone(), port: Some(target.port), reply };
        self.gate.approvals.0.try_send(request).map_err(|_| NotApproved::NotAsked)?;
        let approval = tokio::select! {
            replied = timeout_at(deadline, replied) => match replied {
                Ok(Ok(approval)) => approval,
                // The question cannot be asked.
                Ok(Err(_)) => return Err(NotApproved::NotAsked),
                Err(_) => Approval::No,
            },
            // The user has added a rule instead of replying.
            () = policy.wait_for_rule(target) => Approval::Always,
        };
        match approval {
            Approval::Always if policy.snapshot().find_rule(target).is_err() => policy.allow(rule.clone()),
            Approval::No => self.gate.state.lock().remember_refusal(self.host.clone()),
            Approval::Always | Approval::Once => {}
        }
        let reply = Reply { port: target.port, approval };
        self.reply.send_replace(Some(reply));
        Ok(reply)
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        self.gate.state.lock().questions.remove(&self.host);
    }
}

/// A connection that waits for a reply.
struct Waiting<'a>(&'a ApprovalGate);

impl<'a> Waiting<'a> {
    fn enter(gate: &'a ApprovalGate) -> Option<Self> {
        let mut state = gate.state.lock();
        (state.waiting < MAX_WAITING).then(|| {
            state.waiting += 1;
            Self(gate)
        })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state.lock().waiting -= 1;
    }
}

/// Returns whether a host can be on the internet. A rule for an address would also allow private addresses, so that only
/// the user may write it.
fn is_askable(host: &Host) -> bool {
    const LOCAL_DOMAINS: [&str; 6] = ["arpa", "internal", "invalid", "local", "localdomain", "localhost"];
    match host {
        Host::Address(address) => AddressClass::of(*address) == AddressClass::Public,
        Host::Name(name) => {
            let domain = name.as_str().rsplit_once('.').map(|(_, domain)| domain);
            domain.is_some_and(|domain| !LOCAL_DOMAINS.contains(&domain))
        }
    }
}

#[cfg(test)]
mod tests;
