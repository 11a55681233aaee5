//! The policy of a running sandbox, to which rules can be added. Rules are never removed.

use std::sync::Arc;

use tokio::sync::watch;

use crate::rules::{HostPort, Policy, Rule};

/// A policy that lookups and connections share. A connection decides with one [`Self::snapshot`].
#[derive(Debug)]
pub(crate) struct LivePolicy(watch::Sender<Arc<Policy>>);

impl LivePolicy {
    pub(crate) fn new(policy: Policy) -> Self {
        Self(watch::Sender::new(Arc::new(policy)))
    }

    /// Returns the policy as it is now.
    pub(crate) fn snapshot(&self) -> Arc<Policy> {
        Arc::clone(&self.0.borrow())
    }

    /// Adds a rule, unless the policy has it already.
    pub(crate) fn allow(&self, rule: Rule) {
        self.0.send_if_modified(|policy| {
            let is_new = !policy.rules.contains(&rule);
            if is_new {
                Arc::make_mut(policy).rules.push(rule);
            }
            is_new
        });
    }

    /// Waits until a rule allows a destination.
    pub(crate) async fn wait_for_rule(&self, target: &HostPort) {
        let _ = self.0.subscribe().wait_for(|policy| policy.find_rule(target).is_ok()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_rule_changes_later_snapshots_only() {
        let policy = LivePolicy::new(Policy::parse(["a.test"]).unwrap());
        let before = policy.snapshot();
        policy.allow("b.test".parse().unwrap());
        policy.allow("b.test".parse().unwrap());
        assert_eq!((before.rules.len(), policy.snapshot().rules.len()), (1, 2));
    }
}
