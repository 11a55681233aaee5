//! The destinations that two rules have in common.

use super::{Host, HostPattern, PortPattern, Rule};
use crate::rules::RequestScope;

impl Rule {
    /// Returns whether there is a host and port that both rules allow, for any requests.
    pub fn has_common_destination(&self, other: &Self) -> bool {
        common_hosts(&self.hosts, &other.hosts).is_some() && common_ports(self.ports, other.ports).is_some()
    }

    /// Returns the rule for the destinations that both rules allow. `None` if there are none.
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        Some(Self {
            hosts: common_hosts(&self.hosts, &other.hosts)?,
            ports: common_ports(self.ports, other.ports)?,
            allows_private: self.allows_private && other.allows_private,
            requests: common_requests(&self.requests, &other.requests)?,
        })
    }
}

fn common_hosts(left: &HostPattern, right: &HostPattern) -> Option<HostPattern> {
    let is_within = |inner: &HostPattern, outer: &HostPattern| match (inner, outer) {
        (HostPattern::Exact(inner), HostPattern::Exact(outer)) => inner == outer,
        (HostPattern::Exact(Host::Name(inner)), HostPattern::SubdomainsOf(outer)) => inner.is_subdomain_of(outer),
        (HostPattern::SubdomainsOf(inner), HostPattern::SubdomainsOf(outer)) => {
            inner == outer || inner.is_subdomain_of(outer)
        }
        _ => false,
    };
    if is_within(left, right) {
        return Some(left.clone());
    }
    is_within(right, left).then(|| right.clone())
}

fn common_ports(left: PortPattern, right: PortPattern) -> Option<PortPattern> {
    match (left, right) {
        (PortPattern::Any, ports) | (ports, PortPattern::Any) => Some(ports),
        (PortPattern::Web, PortPattern::Exact(port)) | (PortPattern::Exact(port), PortPattern::Web) => {
            matches!(port, 80 | 443).then_some(PortPattern::Exact(port))
        }
        (left, right) => (left == right).then_some(left),
    }
}

/// Two different path patterns count as disjoint, which can only allow less.
fn common_requests(left: &RequestScope, right: &RequestScope) -> Option<RequestScope> {
    Some(RequestScope {
        methods: common_limits(&left.methods, &right.methods)?,
        paths: common_limits(&left.paths, &right.paths)?,
    })
}

/// An empty list does not limit.
fn common_limits<T: Clone + PartialEq>(left: &[T], right: &[T]) -> Option<Vec<T>> {
    match (left, right) {
        ([], limits) | (limits, []) => Some(limits.to_vec()),
        (left, right) => {
            let common: Vec<T> = left.iter().filter(|limit| right.contains(limit)).cloned().collect();
            (!common.is_empty()).then_some(common)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intersection_allows_only_what_both_rules_allow() {
        for (left, right, expected) in [
            ("a.example", "a.example", Some("a.example")),
            ("a.example", "b.example", None),
            ("*.example", "a.example", Some("a.example")),
            ("a.b.example:8443", "*.example:*", Some("a.b.example:8443")),
            ("*.b.example", "*.example", Some("*.b.example")),
            ("*.example", "*.sample", None),
            ("*.example", "example", None),
            ("a.example", "a.example:443", Some("a.example:443")),
            ("a.example", "a.example:8443", None),
            ("a.example:1", "a.example:2", None),
            ("a.example+private", "a.example", Some("a.example")),
            ("*.example:*+private", "a.example+private", Some("a.example+private")),
            ("10.0.0.1", "10.0.0.1:*", Some("10.0.0.1")),
            ("10.0.0.1", "*.example", None),
            ("a.example method=GET", "*.example", Some("a.example method=GET")),
            ("a.example method=GET method=POST", "a.example method=GET path=/x", Some("a.example method=GET path=/x")),
            ("a.example method=GET", "a.example method=POST", None),
            ("a.example path=/x/*", "a.example path=/y", None),
        ] {
            let [left, right] = [left, right].map(|text| text.parse::<Rule>().unwrap());
            let expected = expected.map(|text| text.parse::<Rule>().unwrap());
            assert_eq!(left.intersection(&right), expected, "{left} and {right}");
            assert_eq!(right.intersection(&left), expected, "{right} and {left}");
        }
    }
}
