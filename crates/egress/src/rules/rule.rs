//! One rule of an egress policy: `HOST[:PORT][+private]`, optionally followed by ` method=GET` and ` path=/repos/*`.
//!
//! HOST is a name, `*.domain` (all subdomains at any depth, but not the domain itself), an IPv4 address or an IPv6
//! address in brackets. PORT is a number or `*`; the default is 80 and 443. Rules allow; no rule denies. A rule with
//! methods or paths allows only such HTTP requests.

mod intersection;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::address_class::AddressClass;
use super::host::{DnsName, Host, HostError, HostPort, parse_port, split_port};
use super::request::{MethodError, PathPatternError, RequestScope};

/// Reason why a text is not a valid rule.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error("egress rule {rule:?} has an invalid host")]
    Host { rule: String, source: HostError },
    #[error("egress rule {rule:?} has port {port:?}, which is neither a number from 1 to 65535 nor `*`")]
    Port { rule: String, port: String },
    #[error("egress rule {rule:?} has the unknown flag {flag:?}")]
    Flag { rule: String, flag: String },
    #[error("egress rule {rule:?} has a wildcard that is not a leading `*.`")]
    Wildcard { rule: String },
    #[error("egress rule {rule:?} has an address that cannot be connected to")]
    Unusable { rule: String },
    #[error("egress rule {rule:?} has an invalid method")]
    Method { rule: String, source: MethodError },
    #[error("egress rule {rule:?} has an invalid path")]
    Path { rule: String, source: PathPatternError },
    #[error("egress rule {rule:?} has the unknown part {part:?}")]
    Part { rule: String, part: String },
}

impl RuleError {
    /// Returns what to write instead.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Host { source, .. } => match source {
                HostError::Character('/') => "write only the host, without scheme and path",
                HostError::Character(c) if !c.is_ascii() => "write the name in its xn-- form",
                _ => {
                    "the format is HOST[:PORT][+private], for example api.example.com, \
                     *.example.com:8443 or [2001:db8::1]:443"
                }
            },
            Self::Port { .. } => "omit the port for 80 and 443, or write `:*` for every port",
            Self::Flag { .. } => "the only flag is +private",
            Self::Wildcard { .. } => "`*.example.com` allows every subdomain of example.com",
            Self::Unusable { .. } => "write the address of one host, such as 127.0.0.1",
            Self::Method { .. } => "write a method of HTTP, such as GET; CONNECT cannot be allowed",
            Self::Path { .. } => "write a path such as /user, /repos/*/issues, or /repos/* for everything beneath",
            Self::Part { .. } => "after the host, a rule may have parts like method=GET and path=/repos/*",
        }
    }
}

/// A rule that allows one host, or the subdomains of one domain, on some ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    hosts: HostPattern,
    ports: PortPattern,
    allows_private: bool,
    requests: RequestScope,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum HostPattern {
    Exact(Host),
    SubdomainsOf(DnsName),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PortPattern {
    /// Ports 80 and 443.
    Web,
    Exact(u16),
    Any,
}

impl Rule {
    /// Returns the port besides 80 and 443 on which programs connect to the name of this rule. `None` for a rule with
    /// an address, which only the explicit proxy serves.
    pub fn port(&self) -> Option<u16> {
        match (&self.hosts, self.ports) {
            (HostPattern::Exact(Host::Address(_)), _) | (_, PortPattern::Web | PortPattern::Any) => None,
            (_, PortPattern::Exact(port)) => Some(port),
        }
    }

    /// Limits the rule to requests with these methods, in addition to those that it already has.
    pub fn with_methods<T: AsRef<str>>(mut self, methods: impl IntoIterator<Item = T>) -> Result<Self, RuleError> {
        for method in methods {
            let method =
                method.as_ref().parse().map_err(|source| RuleError::Method { rule: self.to_string(), source })?;
            if !self.requests.methods.contains(&method) {
                self.requests.methods.push(method);
            }
        }
        Ok(self)
    }

    /// Limits the rule to requests whose path matches one of these patterns, in addition to those that it already has.
    pub fn with_paths<T: AsRef<str>>(mut self, paths: impl IntoIterator<Item = T>) -> Result<Self, RuleError> {
        for path in paths {
            let path = path.as_ref().parse().map_err(|source| RuleError::Path { rule: self.to_string(), source })?;
            if !self.requests.paths.contains(&path) {
                self.requests.paths.push(path);
            }
        }
        Ok(self)
    }

    /// The requests that this rule allows.
    pub fn requests(&self) -> &RequestScope {
        &self.requests
    }

    pub(super) fn matches_host(&self, host: &Host) -> bool {
        match (&self.hosts, host) {
            (HostPattern::Exact(allowed), host) => allowed == host,
            (HostPattern::SubdomainsOf(parent), Host::Name(name)) => name.is_subdomain_of(parent),
            (HostPattern::SubdomainsOf(_), Host::Address(_)) => false,
        }
    }

    pub(super) fn matches_port(&self, port: u16) -> bool {
        match self.ports {
            PortPattern::Web => matches!(port, 80 | 443),
            PortPattern::Exact(allowed) => port == allowed,
            PortPattern::Any => true,
        }
    }

    /// Returns whether the rule allows only public addresses.
    pub fn is_public(&self) -> bool {
        let is_public_host = match &self.hosts {
            HostPattern::Exact(Host::Address(address)) => AddressClass::of(*address) == AddressClass::Public,
            HostPattern::Exact(Host::Name(_)) | HostPattern::SubdomainsOf(_) => true,
        };
        is_public_host && !self.allows_private
    }

    /// Returns whether the rule is for this host and port.
    pub(crate) fn matches(&self, target: &HostPort) -> bool {
        self.matches_host(&target.host) && self.matches_port(target.port)
    }

    /// Returns whether the hosts of this rule may have private addresses.
    pub(crate) fn allows_private(&self) -> bool {
        self.allows_private
    }

    /// Checks an address of a host that this rule allows; fails with the class of a forbidden address.
    pub(super) fn check_address(&self, address: IpAddr) -> Result<(), AddressClass> {
        match AddressClass::of(address) {
            AddressClass::Public => Ok(()),
            AddressClass::Private if self.allows_private => Ok(()),
            _ if self.hosts == HostPattern::Exact(Host::Address(address)) => Ok(()),
            class => Err(class),
        }
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        match text.split_once(' ') {
            None => Self::parse_destination(text),
            Some((destination, parts)) => {
                parts.split_whitespace().try_fold(Self::parse_destination(destination)?, |rule, part| {
                    match part.split_once('=') {
                        Some(("method", method)) => rule.with_methods([method]),
                        Some(("path", path)) => rule.with_paths([path]),
                        _ => Err(RuleError::Part { rule: text.to_owned(), part: part.to_owned() }),
                    }
                })
            }
        }
    }
}

impl Rule {
    fn parse_destination(text: &str) -> Result<Self, RuleError> {
        let rule = || text.to_owned();
        let bad_host = |source| RuleError::Host { rule: rule(), source };
        let (host_port, flag) = match text.split_once('+') {
            Some((host_port, flag)) => (host_port, Some(flag)),
            None => (text, None),
        };
        if let Some(flag) = flag.filter(|&flag| flag != "private") {
            return Err(RuleError::Flag { rule: rule(), flag: flag.to_owned() });
        }
        if host_port.contains('/') {
            return Err(bad_host(HostError::Character('/')));
        }
        let (host, port) = split_port(host_port).map_err(bad_host)?;
        let ports = match port {
            None => PortPattern::Web,
            Some("*") => PortPattern::Any,
            Some(port) => PortPattern::Exact(
                parse_port(port).ok_or_else(|| RuleError::Port { rule: rule(), port: port.to_owned() })?,
            ),
        };
        let hosts = match host.strip_prefix("*.") {
            Some(parent) if !parent.contains('*') => HostPattern::SubdomainsOf(parent.parse().map_err(bad_host)?),
            None if !host.contains('*') => HostPattern::Exact(host.parse().map_err(bad_host)?),
            _ => return Err(RuleError::Wildcard { rule: rule() }),
        };
        let literal = match hosts {
            HostPattern::Exact(Host::Address(address)) => Some(address),
            _ => None,
        };
        if literal.is_some_and(|address| AddressClass::of(address) == AddressClass::Unusable) {
            return Err(RuleError::Unusable { rule: rule() });
        }
        Ok(Self {
            hosts,
            ports,
            allows_private: flag.is_some() && literal.is_none(),
            requests: RequestScope::default(),
        })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hosts {
            HostPattern::Exact(host) => write!(f, "{host}")?,
            HostPattern::SubdomainsOf(parent) => write!(f, "*.{}", parent.as_str())?,
        }
        match self.ports {
            PortPattern::Web => {}
            PortPattern::Exact(port) => write!(f, ":{port}")?,
            PortPattern::Any => f.write_str(":*")?,
        }
        f.write_str(if self.allows_private { "+private" } else { "" })?;
        self.requests.methods.iter().try_for_each(|method| write!(f, " method={method}"))?;
        self.requests.paths.iter().try_for_each(|path| write!(f, " path={path}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_parsed_and_written_in_one_form() {
        for (text, shown) in [
            ("Example.com.", "example.com"),
            ("example.com:8080", "example.com:8080"),
            ("*.example.com:*+private", "*.example.com:*+private"),
            ("db+private", "db+private"),
            ("10.0.0.1:5432+private", "10.0.0.1:5432"),
            ("[FD00::1]:443", "[fd00::1]:443"),
            ("169.254.169.254", "169.254.169.254"),
            (
                "a.com:443+private method=get  path=/repos/* method=POST method=GET",
                "a.com:443+private method=GET method=POST path=/repos/*",
            ),
        ] {
            let rule: Rule = text.parse().unwrap();
            assert_eq!(rule.to_string(), shown);
            assert_eq!(shown.parse::<Rule>().unwrap(), rule);
        }
    }

    #[test]
    fn invalid_rules_are_refused_with_reason_and_hint() {
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
            "a.com method=",
            "a.com method=CONNECT",
            "a.com path=repos",
            "a.com path=/a/../b",
            "a.com GET",
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
    fn addresses_are_checked_by_class() {
        let check = |rule: &str, address: &str| rule.parse::<Rule>().unwrap().check_address(address.parse().unwrap());
        assert_eq!(check("a.com", "1.1.1.1"), Ok(()));
        assert_eq!(check("a.com", "10.0.0.1"), Err(AddressClass::Private));
        assert_eq!(check("a.com+private", "10.0.0.1"), Ok(()));
        assert_eq!(check("a.com+private", "::ffff:10.0.0.1"), Ok(()));
        assert_eq!(check("a.com+private", "169.254.169.254"), Err(AddressClass::Metadata));
        assert_eq!(check("a.com+private", "::ffff:a9fe:a9fe"), Err(AddressClass::Metadata));
        assert_eq!(check("a.com+private", "0.0.0.0"), Err(AddressClass::Unusable));
        assert_eq!(check("169.254.169.254", "169.254.169.254"), Ok(()));
        assert_eq!(check("10.0.0.1", "10.0.0.1"), Ok(()));
        assert_eq!(check("10.0.0.1", "10.0.0.2"), Err(AddressClass::Private));
    }
}
