//! The policy of a sandbox: decisions about a destination, before and after its name is resolved.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ringfence_core::{MAX_EGRESS_PORTS, MIRROR_PORT, PROXY_PORT};

use super::address_class::AddressClass;
use super::host::{Host, HostPort};
use super::request::RequestScope;
use super::rule::{Rule, RuleError};

/// The rules of a sandbox. A destination is allowed if any rule allows it; an empty policy allows nothing.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    pub rules: Vec<Rule>,
}

/// Reason why a policy denies a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denial {
    #[error("no rule allows this host")]
    NoRule,
    #[error("no rule allows this port of the host")]
    WrongPort,
    #[error("the host resolves to {0}, which is a private address")]
    Private(IpAddr),
    #[error("the host resolves to {0}, which is a cloud metadata address")]
    Metadata(IpAddr),
    #[error("the host resolves to {0}, which is not the address of a host")]
    Unusable(IpAddr),
}

impl Denial {
    /// Returns the stable code of this denial.
    pub(crate) fn code(self) -> &'static str {
        match self {
            Self::NoRule => "no-rule",
            Self::WrongPort => "wrong-port",
            Self::Private(_) => "private-address",
            Self::Metadata(_) => "metadata-address",
            Self::Unusable(_) => "unusable-address",
        }
    }
}

/// Ports that every sandbox with egress has for something else.
const RESERVED_PORTS: [u16; 5] = [53, 80, 443, PROXY_PORT, MIRROR_PORT];

impl Policy {
    /// Returns the ports that rules name, besides 80 and 443, on which a sandbox needs a listener: the lowest ones, if
    /// there are more than a sandbox can have.
    pub fn named_ports(rules: &[Rule]) -> BTreeSet<u16> {
        let ports: BTreeSet<u16> = rules.iter().filter_map(Rule::port).collect();
        ports.into_iter().filter(|port| !RESERVED_PORTS.contains(port)).take(MAX_EGRESS_PORTS).collect()
    }

    /// Parses rules; fails at the first invalid one.
    pub fn parse<'a>(rules: impl IntoIterator<Item = &'a str>) -> Result<Self, RuleError> {
        let rules = rules.into_iter().map(str::parse).collect::<Result<_, _>>()?;
        Ok(Self { rules })
    }

    /// Returns whether a rule allows some port of a host.
    pub(crate) fn has_rule_for(&self, host: &Host) -> bool {
        self.rules.iter().any(|rule| rule.matches_host(host))
    }

    /// Finds the rule that allows a destination. If several do, a rule that allows private addresses wins.
    pub(crate) fn find_rule(&self, target: &HostPort) -> Result<&Rule, Denial> {
        let mut for_host = self.rules.iter().filter(|rule| rule.matches_host(&target.host)).peekable();
        if for_host.peek().is_none() {
            return Err(Denial::NoRule);
        }
        for_host
            .filter(|rule| rule.matches_port(target.port))
            .max_by_key(|rule| rule.allows_private())
            .ok_or(Denial::WrongPort)
    }

    /// Returns the limits on the requests to a destination at `address`, of which one must allow a request. They are empty
    /// if a rule without limits applies.
    pub(crate) fn request_scopes(rules: &[Rule], target: &HostPort, address: Option<IpAddr>) -> Vec<RequestScope> {
        let applies = |rule: &&Rule| {
            let has_address = address.is_none_or(|address| rule.check_address(address).is_ok());
            rule.matches_host(&target.host) && rule.matches_port(target.port) && has_address
        };
        let scopes: Vec<_> = rules.iter().filter(applies).map(|rule| rule.requests().clone()).collect();
        if scopes.iter().all(RequestScope::is_limited) { scopes } else { Vec::new() }
    }

    /// Checks all addresses of a host that `rule` allows.
    ///
    /// One forbidden address denies the host: a name with both public and private addresses is a sign of DNS rebinding.
    pub(crate) fn check_addresses(rule: &Rule, addresses: &[IpAddr]) -> Result<(), Denial> {
        for &address in addresses {
            rule.check_address(address).map_err(|class| match class {
                AddressClass::Metadata => Denial::Metadata(address),
                AddressClass::Public | AddressClass::Private => Denial::Private(address),
                AddressClass::Unusable => Denial::Unusable(address),
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_rule(rules: &[&str], target: &str) -> Result<String, &'static str> {
        let policy = Policy::parse(rules.iter().copied()).unwrap();
        let target = HostPort::parse(target, None).unwrap();
        policy.find_rule(&target).map(ToString::to_string).map_err(Denial::code)
    }

    #[test]
    fn rules_match_hosts_and_ports() {
        let rules = ["a.com", "*.b.com:8443", "10.0.0.1:*", "[::1]:80"];
        for (target, expected) in [
            ("a.com:443", Ok("a.com")),
            ("A.COM.:80", Ok("a.com")),
            ("a.com:8080", Err("wrong-port")),
            ("sub.a.com:443", Err("no-rule")),
            ("xa.com:443", Err("no-rule")),
            ("x.b.com:8443", Ok("*.b.com:8443")),
            ("x.y.b.com:8443", Ok("*.b.com:8443")),
            ("b.com:8443", Err("no-rule")),
            ("xb.com:8443", Err("no-rule")),
            ("x.b.com.evil.org:8443", Err("no-rule")),
            ("x.b.com:443", Err("wrong-port")),
            ("10.0.0.1:1", Ok("10.0.0.1:*")),
            ("10.0.0.2:1", Err("no-rule")),
            ("[::1]:80", Ok("[::1]:80")),
            ("[0:0:0:0:0:0:0:1]:443", Err("wrong-port")),
        ] {
            assert_eq!(find_rule(&rules, target), expected.map(str::to_owned), "{target}");
        }
        assert_eq!(find_rule(&[], "a.com:443"), Err("no-rule"));
    }

    #[test]
    fn rule_that_allows_private_addresses_wins() {
        let rules = ["db.corp:443", "*.corp:443+private", "*.corp"];
        assert_eq!(find_rule(&rules, "db.corp:443").unwrap(), "*.corp:443+private");
        assert_eq!(find_rule(&rules, "db.corp:80").unwrap(), "*.corp");
    }

    #[test]
    fn rule_without_limits_applies_to_all_requests_at_its_addresses() {
        let target = HostPort::parse("a.com:443", None).unwrap();
        let scopes = |rules: &[&str], address: &str| {
            let rules = Policy::parse(rules.iter().copied()).unwrap().rules;
            Policy::request_scopes(&rules, &target, Some(address.parse().unwrap())).len()
        };
        assert_eq!(scopes(&["a.com method=GET", "*.com path=/x", "b.com"], "1.1.1.1"), 2);
        assert_eq!(scopes(&["a.com method=GET", "a.com"], "1.1.1.1"), 0);
        assert_eq!(scopes(&["a.com:80", "a.com:443 method=GET"], "1.1.1.1"), 1);
        // The unlimited rule does not allow the address.
        assert_eq!(scopes(&["a.com+private method=GET", "a.com"], "10.0.0.1"), 1);
    }

    #[test]
    fn one_forbidden_address_denies_host() {
        let rule = "a.com".parse().unwrap();
        let check = |addresses: &[&str]| {
            let addresses: Vec<IpAddr> = addresses.iter().map(|a| a.parse().unwrap()).collect();
            Policy::check_addresses(&rule, &addresses).map_err(Denial::code)
        };
        assert_eq!(check(&["1.1.1.1", "2606:4700::1"]), Ok(()));
        assert_eq!(check(&["1.1.1.1", "10.0.0.1"]), Err("private-address"));
        assert_eq!(check(&["1.1.1.1", "169.254.169.254"]), Err("metadata-address"));
        assert_eq!(check(&["0.0.0.0"]), Err("unusable-address"));
    }
}
