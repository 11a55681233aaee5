//! One rule of an egress policy: `HOST[:PORT][+private]`.
//!
//! HOST is a name, `*.domain` (its subdomains at any depth, not itself), an IPv4 address or an
//! IPv6 address in brackets. PORT is a number or `*`; without it 80 and 443 are meant. A rule only
//! ever allows.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::address::Reach;
use super::host::{Host, HostError, Name, parse_port, split_port};

/// Why a rule cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error("egress rule {rule:?} names no usable host")]
    Host { rule: String, source: HostError },
    #[error("egress rule {rule:?} has port {port:?}, which is neither 1 to 65535 nor *")]
    Port { rule: String, port: String },
    #[error("egress rule {rule:?} has an unknown flag {flag:?}")]
    Flag { rule: String, flag: String },
    #[error("egress rule {rule:?} has a wildcard that is not a leading *.")]
    Wildcard { rule: String },
    #[error("egress rule {rule:?} names an address that no connection can use")]
    Unusable { rule: String },
}

impl RuleError {
    /// What to write instead.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Host { source, .. } => match source {
                HostError::Character('/') => "write the host alone, without a scheme or a path",
                HostError::Character(c) if !c.is_ascii() => "write the name in its xn-- form",
                _ => {
                    "a rule is HOST[:PORT][+private], as in api.example.com, \
                     *.example.com:8443 or [2001:db8::1]:443"
                }
            },
            Self::Port { .. } => "leave the port out for 80 and 443, or write :* for every port",
            Self::Flag { .. } => "the only flag is +private",
            Self::Wildcard { .. } => "*.example.com allows every subdomain of example.com",
            Self::Unusable { .. } => "name one host's own address, such as 127.0.0.1",
        }
    }
}

/// Allows one host, or the subdomains of one, on some ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    hosts: Hosts,
    ports: Ports,
    private: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Hosts {
    Exactly(Host),
    Below(Name),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ports {
    Web,
    One(u16),
    Any,
}

impl Rule {
    pub(super) fn covers_host(&self, host: &Host) -> bool {
        match (&self.hosts, host) {
            (Hosts::Exactly(allowed), host) => allowed == host,
            (Hosts::Below(parent), Host::Name(name)) => name.is_below(parent),
            (Hosts::Below(_), Host::Address(_)) => false,
        }
    }

    pub(super) fn covers_port(&self, port: u16) -> bool {
        match self.ports {
            Ports::Web => matches!(port, 80 | 443),
            Ports::One(allowed) => port == allowed,
            Ports::Any => true,
        }
    }

    /// Whether the hosts of this rule may have private addresses.
    pub fn allows_private(&self) -> bool {
        self.private
    }

    /// Judges an address that a host of this rule has: what speaks against it, if anything.
    pub fn check(&self, address: IpAddr) -> Result<(), Reach> {
        match Reach::of(address) {
            Reach::Public => Ok(()),
            Reach::Private if self.private => Ok(()),
            _ if self.hosts == Hosts::Exactly(Host::Address(address)) => Ok(()),
            reach => Err(reach),
        }
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let rule = || text.to_owned();
        let bad_host = |source| RuleError::Host { rule: rule(), source };
        let (place, flag) = match text.split_once('+') {
            Some((place, flag)) => (place, Some(flag)),
            None => (text, None),
        };
        if let Some(flag) = flag.filter(|&flag| flag != "private") {
            return Err(RuleError::Flag { rule: rule(), flag: flag.to_owned() });
        }
        if place.contains('/') {
            return Err(bad_host(HostError::Character('/')));
        }
        let (host, port) = split_port(place).map_err(bad_host)?;
        let ports = match port {
            None => Ports::Web,
            Some("*") => Ports::Any,
            Some(port) => {
                Ports::One(parse_port(port).ok_or_else(|| RuleError::Port { rule: rule(), port: port.to_owned() })?)
            }
        };
        let hosts = match host.strip_prefix("*.") {
            Some(parent) if !parent.contains('*') => Hosts::Below(parent.parse().map_err(bad_host)?),
            None if !host.contains('*') => Hosts::Exactly(host.parse().map_err(bad_host)?),
            _ => return Err(RuleError::Wildcard { rule: rule() }),
        };
        let literal = match hosts {
            Hosts::Exactly(Host::Address(address)) => Some(address),
            _ => None,
        };
        if literal.is_some_and(|address| Reach::of(address) == Reach::Unusable) {
            return Err(RuleError::Unusable { rule: rule() });
        }
        Ok(Self { hosts, ports, private: flag.is_some() && literal.is_none() })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hosts {
            Hosts::Exactly(host) => write!(f, "{host}")?,
            Hosts::Below(parent) => write!(f, "*.{}", parent.as_str())?,
        }
        match self.ports {
            Ports::Web => {}
            Ports::One(port) => write!(f, ":{port}")?,
            Ports::Any => f.write_str(":*")?,
        }
        f.write_str(if self.private { "+private" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes() {
        for (text, shown) in [
            ("Example.com.", "example.com"),
            ("example.com:8080", "example.com:8080"),
            ("*.example.com:*+private", "*.example.com:*+private"),
            ("db+private", "db+private"),
            ("10.0.0.1:5432+private", "10.0.0.1:5432"),
            ("[FD00::1]:443", "[fd00::1]:443"),
            ("169.254.169.254", "169.254.169.254"),
        ] {
            let rule: Rule = text.parse().unwrap();
            assert_eq!(rule.to_string(), shown);
            assert_eq!(shown.parse::<Rule>().unwrap(), rule);
        }
    }

    #[test]
    fn bad_rules_say_why() {
        let mut shown = String::new();
        for text in [
            "",
            "*",
            "*.",
            "a.*.com",
            "*.*.com",
            "example.com:http",
            "example.com:0",
            "example.com+public",
            "https://example.com",
            "example.com/path",
            "bücher.example",
            "127.1",
            "*.0.0.1",
            "::1",
            "[::ffff:10.0.0.1]",
            "0.0.0.0",
        ] {
            use std::error::Error;
            use std::fmt::Write;
            let error = text.parse::<Rule>().unwrap_err();
            let cause = error.source().map(|s| format!(": {s}")).unwrap_or_default();
            writeln!(shown, "{error}{cause} [{}]", error.hint()).unwrap();
        }
        insta::assert_snapshot!(shown);
    }

    #[test]
    fn addresses() {
        let check = |rule: &str, address: &str| rule.parse::<Rule>().unwrap().check(address.parse().unwrap());
        assert_eq!(check("a.com", "1.1.1.1"), Ok(()));
        assert_eq!(check("a.com", "10.0.0.1"), Err(Reach::Private));
        assert_eq!(check("a.com+private", "10.0.0.1"), Ok(()));
        assert_eq!(check("a.com+private", "::ffff:10.0.0.1"), Ok(()));
        assert_eq!(check("a.com+private", "169.254.169.254"), Err(Reach::Metadata));
        assert_eq!(check("a.com+private", "::ffff:a9fe:a9fe"), Err(Reach::Metadata));
        assert_eq!(check("a.com+private", "0.0.0.0"), Err(Reach::Unusable));
        assert_eq!(check("169.254.169.254", "169.254.169.254"), Ok(()));
        assert_eq!(check("10.0.0.1", "10.0.0.1"), Ok(()));
        assert_eq!(check("10.0.0.1", "10.0.0.2"), Err(Reach::Private));
    }
}
