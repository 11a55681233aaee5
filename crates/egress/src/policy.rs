//! What a sandbox may reach: pure decisions, before and after a name is resolved.

use std::net::IpAddr;

use super::address::Reach;
use super::host::Target;
use super::refusal::Refusal;
use super::rule::{Rule, RuleError};

/// Rules, any of which allows; with none, nothing is allowed.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    pub rules: Vec<Rule>,
}

impl Policy {
    /// Reads rules, ending at the first that cannot be used.
    pub fn parse<'a>(rules: impl IntoIterator<Item = &'a str>) -> Result<Self, RuleError> {
        let rules = rules.into_iter().map(str::parse).collect::<Result<_, _>>()?;
        Ok(Self { rules })
    }

    /// Finds the rule that allows a host and port; of several, one that allows private addresses.
    pub fn admit(&self, target: &Target) -> Result<&Rule, Refusal> {
        let mut of_host = self.rules.iter().filter(|rule| rule.covers_host(&target.host)).peekable();
        if of_host.peek().is_none() {
            return Err(Refusal::NoRule);
        }
        of_host
            .filter(|rule| rule.covers_port(target.port))
            .max_by_key(|rule| rule.allows_private())
            .ok_or(Refusal::WrongPort)
    }

    /// Judges all addresses of a host that `rule` has admitted.
    ///
    /// One forbidden address condemns the host: a name that has both public and private answers
    /// is trying to be rebound.
    pub fn check(rule: &Rule, addresses: &[IpAddr]) -> Result<(), Refusal> {
        for &address in addresses {
            rule.check(address).map_err(|reach| match reach {
                Reach::Metadata => Refusal::Metadata(address),
                Reach::Public | Reach::Private => Refusal::Private(address),
                Reach::Unusable => Refusal::Unusable(address),
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(rules: &[&str], target: &str) -> Result<String, &'static str> {
        let policy = Policy::parse(rules.iter().copied()).unwrap();
        policy.admit(&Target::parse(target, None).unwrap()).map(ToString::to_string).map_err(|refusal| refusal.code())
    }

    #[test]
    fn hosts_and_ports() {
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
            assert_eq!(admit(&rules, target), expected.map(str::to_owned), "{target}");
        }
        assert_eq!(admit(&[], "a.com:443"), Err("no-rule"));
    }

    #[test]
    fn the_widest_rule_counts() {
        let rules = ["db.corp:443", "*.corp:443+private", "*.corp"];
        assert_eq!(admit(&rules, "db.corp:443").unwrap(), "*.corp:443+private");
        assert_eq!(admit(&rules, "db.corp:80").unwrap(), "*.corp");
    }

    #[test]
    fn one_forbidden_address_condemns_all() {
        let rule = "a.com".parse().unwrap();
        let check = |addresses: &[&str]| {
            let addresses: Vec<IpAddr> = addresses.iter().map(|a| a.parse().unwrap()).collect();
            Policy::check(&rule, &addresses).map_err(|refusal| refusal.code())
        };
        assert_eq!(check(&["1.1.1.1", "2606:4700::1"]), Ok(()));
        assert_eq!(check(&["1.1.1.1", "10.0.0.1"]), Err("private-address"));
        assert_eq!(check(&["1.1.1.1", "169.254.169.254"]), Err("metadata-address"));
        assert_eq!(check(&["0.0.0.0"]), Err("unusable-address"));
    }
}
