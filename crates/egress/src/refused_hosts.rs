//! The hosts that a sandbox was refused, as lines for a person: one for each host, with the command that permits it.
//!
//! An attempt to send the placeholder of a secret has a separate line, so that no other refusal of the host hides it.

use crate::decision::Decision;
use crate::remedy::Remedy;

/// Maximum number of hosts that are remembered, so that a guest cannot fill the memory.
const MAX_HOSTS: usize = 64;

/// The hosts that were refused since the last report, each once.
#[derive(Debug, Default)]
pub struct RefusedHosts {
    /// The first refusal of each host.
    refusals: Vec<Decision>,
    /// Refusals of further hosts.
    more: usize,
}

impl RefusedHosts {
    /// Maximum number of lines about single hosts.
    pub const MAX_LINES: usize = 8;

    /// Adds a decision, if it is a refusal of a host. Returns it if the host was not refused before.
    pub fn add(&mut self, decision: &Decision) -> Option<&Decision> {
        if decision.is_allowed || decision.host.is_none() {
            return None;
        }
        let key = |decision: &Decision| (decision.host.clone(), rule_port(decision), decision.secret.clone());
        let is_same = |known: &&mut Decision| key(known) == key(decision);
        if let Some(known) = self.refusals.iter_mut().find(is_same) {
            known.port = known.port.or(decision.port);
            return None;
        }
        if self.refusals.len() >= MAX_HOSTS {
            self.more += 1;
            return None;
        }
        self.refusals.push(decision.clone());
        self.refusals.last()
    }

    pub fn is_empty(&self) -> bool {
        self.refusals.is_empty()
    }

    /// Returns at most nine lines.
    pub fn lines(&self, remedy: &Remedy) -> Vec<String> {
        let mut lines: Vec<String> =
            self.refusals.iter().take(Self::MAX_LINES).map(|refusal| refusal.describe(remedy)).collect();
        let more = self.refusals.len().saturating_sub(Self::MAX_LINES) + self.more;
        if more > 0 {
            lines.push(format!("network: and {more} more"));
        }
        lines
    }
}

/// The port that a rule for the destination names. Without a port, a rule allows those of the web.
fn rule_port(decision: &Decision) -> Option<u16> {
    decision.port.filter(|port| !matches!(port, 80 | 443))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(host: &str, port: Option<u16>, reason: &'static str) -> Decision {
        Decision { host: Some(host.parse().unwrap()), port, reason, ..Decision::default() }
    }

    #[test]
    fn each_host_has_one_line_with_the_command_that_permits_it() {
        let mut refused = RefusedHosts::default();
        for (host, port, reason) in [
            ("api.example.com", None, "no-rule"),
            ("api.example.com", Some(443), "no-rule"),
            ("api.example.com", Some(80), "no-rule"),
            ("git.example.com", Some(22), "no-rule"),
            ("web.example.com", Some(8443), "wrong-port"),
            ("db.corp", Some(5432), "private-address"),
            ("rebind.example", Some(80), "metadata-address"),
            ("169.254.169.254", Some(80), "no-rule"),
            ("tls.example", Some(443), "no-sni"),
        ] {
            refused.add(&refusal(host, port, reason));
        }
        let leak =
            Decision { secret: Some("github".to_owned()), ..refusal("tls.example", Some(443), "secret-elsewhere") };
        refused.add(&leak);
        refused.add(&leak);
        refused.add(&Decision { is_allowed: true, ..refusal("fine.example", Some(443), "allowed") });
        refused.add(&Decision { host: None, ..refusal("x", None, "head-timeout") });
        insta::assert_snapshot!(refused.lines(&Remedy::Session("s-1".to_owned())).join("\n"));
    }

    #[test]
    fn lines_and_hosts_are_bounded() {
        let mut refused = RefusedHosts::default();
        for number in 0..1000 {
            refused.add(&refusal(&format!("h{number}.example"), Some(443), "no-rule"));
        }
        let lines = refused.lines(&Remedy::Run);
        assert_eq!((lines.len(), lines[8].as_str()), (9, "network: and 992 more"));
        assert_eq!(refused.refusals.len(), MAX_HOSTS);
    }
}
