//! The text of a decision: one line for a person.
//!
//! It contains only fixed text, hosts in their checked spelling, and names of secrets from the configuration.

use super::Decision;
use crate::remedy::Remedy;
use crate::rules::{AddressClass, Host, HostPort};

/// The text of a reason, and the way to permit the destination.
struct Explanation {
    verb: &'static str,
    text: &'static str,
    permit: Permit,
}

enum Permit {
    /// No rule permits it.
    Never,
    Rule,
    PrivateRule,
}

impl Decision {
    /// Describes the decision in one line, with the option or command that permits what was refused.
    pub fn describe(&self, remedy: &Remedy) -> String {
        let subject = match (&self.host, self.port) {
            (Some(host), Some(port)) => format!("{host}:{port}"),
            (Some(host), None) => host.to_string(),
            (None, _) => "a request".to_owned(),
        };
        if self.is_allowed {
            let address = self.address.map_or_else(String::new, |address| format!(" ({address})"));
            return format!("network: allowed {subject}{address}");
        }
        let Some(Explanation { verb, text, permit }) = explain(self.reason) else {
            return format!("network: blocked {subject}, {}", self.reason);
        };
        // A name is permitted for the ports of the web, if it was only looked up.
        let target = self.host.clone().map(|host| HostPort { host, port: self.port.unwrap_or(443) });
        let permitted_by = match (permit, target) {
            (_, Some(target)) if is_never_permitted(&target.host) => String::new(),
            (Permit::Rule, Some(target)) => format!("; to permit it: {}", remedy.permit_target(&target)),
            (Permit::PrivateRule, Some(target)) => format!("; to permit it: {}", remedy.permit_private(&target)),
            _ => String::new(),
        };
        let text = match &self.secret {
            Some(name) => text.replace("a secret", &format!("secret `{name}`")),
            None => text.to_owned(),
        };
        format!("network: {verb} {subject}, {text}{permitted_by}")
    }
}

/// Whether the host is an address that gives out credentials of the machine, or that no host can have.
fn is_never_permitted(host: &Host) -> bool {
    matches!(host, Host::Address(address)
        if matches!(AddressClass::of(*address), AddressClass::Metadata | AddressClass::Unusable))
}

/// Returns the explanation of a refusal of this crate; `None` for an unknown code.
fn explain(reason: &str) -> Option<Explanation> {
    let blocked = |text| Explanation { verb: "blocked", text, permit: Permit::Never };
    let failed = |text| Explanation { verb: "failed", text, permit: Permit::Never };
    let permitted_by = |permit, text| Explanation { permit, ..blocked(text) };
    Some(match reason {
        "no-rule" => permitted_by(Permit::Rule, "not on the allow list"),
        "wrong-port" => permitted_by(Permit::Rule, "this port is not on the allow list"),
        "not-approved" => permitted_by(Permit::Rule, "not approved by the user"),
        "private-address" => permitted_by(Permit::PrivateRule, "the host has a private address"),
        "metadata-address" => blocked("the host has the address of a cloud metadata service"),
        "unusable-address" => blocked("the host has an address that no host can have"),
        "unknown-address" => blocked("no allowed name has this address; connect to hosts by name"),
        "sni-mismatch" => blocked("the TLS server name (SNI) is another host"),
        "no-sni" => blocked("the TLS handshake has no server name (SNI)"),
        "host-mismatch" => blocked("the Host field or the URL of a request is another host"),
        "not-http" => blocked("only HTTP and TLS are allowed on port 80"),
        "not-tls" => blocked("only TLS is allowed on port 443"),
        "bad-hello" => blocked("the TLS handshake is malformed, too large or incomplete"),
        "too-many-connections" => blocked("this sandbox has reached its limit of open connections"),
        "bad-host" => blocked("the name is not a valid host name"),
        "bad-request" => blocked("malformed HTTP request"),
        "head-too-large" => blocked("the HTTP head is too large"),
        "head-incomplete" => blocked("the HTTP head is incomplete"),
        "head-timeout" => blocked("timeout while waiting for the HTTP head"),
        "use-connect" => blocked("https:// requests need a CONNECT tunnel"),
        "not-for-proxy" => blocked("the request is not one for a forward proxy"),
        "no-authority" => blocked(
            "requests to it must be checked, but the sandbox has lost a secret or has no certificate authority; start a new session or restart the server",
        ),
        "wrong-method" => blocked("no rule allows this method for this path"),
        "wrong-path" => blocked("no rule allows this path"),
        "ambiguous-path" => blocked("the path is ambiguous, and the rules of this host are limited to paths"),
        "request-override" => blocked("a request overrides its method or path by a header field"),
        "secret-elsewhere" => blocked("a request contains the placeholder of a secret, which is not for it"),
        "secret-location" => {
            blocked("a request contains the placeholder of a secret, in a location that is not allowed")
        }
        "secret-plain-text" => blocked("a request contains the placeholder of a secret, but has no TLS"),
        "upstream-tls" => failed("the TLS connection to the host cannot be opened"),
        "resolve-failed" => failed("the host name cannot be resolved"),
        "resolve-timeout" => failed("timeout while resolving the host name"),
        "connect-failed" => failed("the host does not accept the connection"),
        "connect-timeout" => failed("timeout while connecting to the host"),
        "bad-response" => failed("the server sent an invalid response"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::Refusal;

    #[test]
    fn every_refusal_has_a_description() {
        let describe = |reason, port| {
            let host = Some("api.example.com".parse().unwrap());
            let decision = Decision { host, port, reason, ..Decision::default() };
            decision.describe(&Remedy::Session("s1".to_owned()))
        };
        let mut lines: Vec<String> =
            Refusal::all().iter().map(|refusal| describe(refusal.code(), Some(8443))).collect();
        assert!(Refusal::all().iter().all(|refusal| explain(refusal.code()).is_some()));
        lines.push(describe("no-rule", Some(443)));
        lines.push(describe("no-rule", None));
        lines.push(describe("other", None));
        let host = Some("api.example.com".parse().unwrap());
        let secret = Some("github".to_owned());
        let leak = Decision { host, port: Some(443), reason: "secret-elsewhere", secret, ..Decision::default() };
        lines.push(leak.describe(&Remedy::Run));
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn remedy_fits_the_sandbox() {
        let decision = Decision { host: Some("a.test".parse().unwrap()), reason: "no-rule", ..Decision::default() };
        for (remedy, permit) in [
            (Remedy::Run, "--network allow=a.test"),
            (Remedy::Session("s1".to_owned()), "ringfence allow session s1 a.test"),
            (Remedy::Server("git".to_owned()), "ringfence allow server git a.test"),
        ] {
            let expected = format!("network: blocked a.test, not on the allow list; to permit it: {permit}");
            assert_eq!(decision.describe(&remedy), expected);
        }
        let unparsed = Decision { reason: "bad-request", ..Decision::default() };
        assert_eq!(unparsed.describe(&Remedy::Run), "network: blocked a request, malformed HTTP request");
    }
}
