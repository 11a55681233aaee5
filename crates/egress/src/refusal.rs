//! Refusals: the reasons why a request or tunnel fails, and the response that the guest receives.
//!
//! A response contains only fixed text and hosts in their checked spelling, never raw bytes of the guest, so that a guest
//! can neither split nor forge it.

use std::io;

use crate::http::HeadError;
use crate::remedy::Remedy;
use crate::rules::{AddressClass, Denial, Host, HostPort, RequestDenial};
use crate::secrets::SecretDenial;

/// Reason why the proxy ended a request or a tunnel.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(transparent)]
    Denied(#[from] Denial),
    #[error("the user has not approved this host")]
    NotApproved,
    #[error("no allowed name has this address")]
    UnknownAddress,
    #[error("{0}")]
    Head(HeadError),
    #[error("timeout while waiting for the request head")]
    HeadTimeout,
    #[error("cannot resolve the host name: {0}")]
    Resolve(io::ErrorKind),
    #[error("timeout while resolving the host name")]
    ResolveTimeout,
    #[error("cannot connect to the host: {0}")]
    Connect(io::ErrorKind),
    #[error("timeout while connecting to the host")]
    ConnectTimeout,
    #[error("the server sent an invalid response: {0}")]
    Response(HeadError),
    #[error("this sandbox has reached its limit of open connections")]
    TooManyConnections,
    #[error("the TLS server name (SNI) is not the host of the tunnel")]
    SniMismatch,
    #[error("the TLS ClientHello has no server name (SNI)")]
    NoSni,
    #[error("only HTTP and TLS are allowed on port 80")]
    NotHttp,
    #[error("only TLS is allowed on port 443")]
    NotTls,
    #[error("the TLS ClientHello is malformed, too large or incomplete")]
    BadHello,
    #[error("requests to this host must be checked, but the sandbox has lost a secret or has no certificate authority")]
    NoAuthority,
    #[error("cannot open a TLS connection to the host: {0}")]
    UpstreamTls(String),
    #[error(transparent)]
    Request(#[from] RequestDenial),
    #[error(transparent)]
    Secret(#[from] SecretDenial),
}

impl Refusal {
    /// Returns the stable code for decisions and the `X-Ringfence-Reason` field.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Denied(denial) => denial.code(),
            Self::NotApproved => "not-approved",
            Self::UnknownAddress => "unknown-address",
            Self::Head(error) => error.code(),
            Self::HeadTimeout => "head-timeout",
            Self::Resolve(_) => "resolve-failed",
            Self::ResolveTimeout => "resolve-timeout",
            Self::Connect(_) => "connect-failed",
            Self::ConnectTimeout => "connect-timeout",
            Self::Response(_) => "bad-response",
            Self::TooManyConnections => "too-many-connections",
            Self::SniMismatch => "sni-mismatch",
            Self::NoSni => "no-sni",
            Self::NotHttp => "not-http",
            Self::NotTls => "not-tls",
            Self::BadHello => "bad-hello",
            Self::NoAuthority => "no-authority",
            Self::UpstreamTls(_) => "upstream-tls",
            Self::Request(denial) => denial.code(),
            Self::Secret(denial) => denial.code(),
        }
    }

    /// Returns the name of the secret whose placeholder was refused.
    pub(crate) fn secret(&self) -> Option<&str> {
        match self {
            Self::Secret(denial) => Some(denial.secret()),
            _ => None,
        }
    }

    fn status(&self) -> &'static str {
        match self {
            Self::Head(HeadError::TooLarge) => "431 Request Header Fields Too Large",
            Self::Head(_) => "400 Bad Request",
            Self::HeadTimeout => "408 Request Timeout",
            Self::Resolve(_) | Self::Connect(_) | Self::Response(_) | Self::UpstreamTls(_) => "502 Bad Gateway",
            Self::ResolveTimeout | Self::ConnectTimeout => "504 Gateway Timeout",
            Self::TooManyConnections => "503 Service Unavailable",
            _ => "403 Forbidden",
        }
    }

    fn hint(&self, target: Option<&HostPort>, remedy: &Remedy) -> Option<String> {
        match (self, target) {
            (Self::Denied(Denial::NoRule), Some(target)) if is_metadata(&target.host) => Some(format!(
                "a cloud metadata service gives out credentials of the machine; only `{}` allows it",
                remedy.permit_target(target)
            )),
            (Self::Denied(Denial::NoRule | Denial::WrongPort) | Self::NotApproved, Some(target)) => {
                Some(format!("allow it with {}", remedy.permit_target(target)))
            }
            (Self::Denied(Denial::Private(_)), Some(target)) => {
                Some(format!("allow it with {}", remedy.permit_private(target)))
            }
            (Self::Denied(Denial::Metadata(_)), _) => Some(
                "a cloud metadata service gives out credentials of the machine; only a rule for \
                 the IP address itself allows it"
                    .to_owned(),
            ),
            (Self::UnknownAddress, _) => Some("connect to hosts by name".to_owned()),
            (Self::Head(error), _) => error.hint().map(str::to_owned),
            (Self::NotHttp, _) => {
                Some("other protocols need a rule with another port, such as allow=HOST:2525".to_owned())
            }
            (Self::NoAuthority, _) => Some("start a new session or restart the server".to_owned()),
            (Self::Secret(denial), _) => Some(denial.hint()),
            (Self::TooManyConnections, _) => Some("close some connections and retry".to_owned()),
            _ => None,
        }
    }

    /// Returns the number of the HTTP status.
    pub(crate) fn status_code(&self) -> u16 {
        self.status().split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(403)
    }

    /// Returns the text of the response, with a hint.
    pub(crate) fn text(&self, target: Option<&HostPort>, remedy: &Remedy) -> String {
        let subject = target.map_or_else(|| "request".to_owned(), |target| format!("egress to {target}"));
        let verb = if self.status().starts_with('5') { "failed" } else { "refused" };
        let hint = self.hint(target, remedy).map_or_else(String::new, |hint| format!("hint: {hint}\n"));
        format!("ringfence: {subject} {verb}: {self}\n{hint}")
    }

    /// Returns the complete HTTP response for the guest.
    pub(crate) fn response(&self, target: Option<&HostPort>, remedy: &Remedy) -> String {
        let body = self.text(target, remedy);
        format!(
            "HTTP/1.1 {}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
             Connection: close\r\nX-Ringfence-Reason: {}\r\n\r\n{body}",
            self.status(),
            body.len(),
            self.code(),
        )
    }
}

#[cfg(test)]
impl Refusal {
    /// Returns every kind of refusal.
    pub(crate) fn all() -> Vec<Self> {
        use crate::rules::HostError;

        let address = std::net::Ipv4Addr::LOCALHOST.into();
        let error = io::ErrorKind::NotFound;
        vec![
            Denial::NoRule.into(),
            Denial::WrongPort.into(),
            Denial::Private(address).into(),
            Denial::Metadata(address).into(),
            Denial::Unusable(address).into(),
            Self::NotApproved,
            Self::UnknownAddress,
            Self::Head(HeadError::TooLarge),
            Self::Head(HeadError::Closed),
            Self::Head(HeadError::Malformed("")),
            Self::Head(HeadError::Host(HostError::Empty)),
            Self::Head(HeadError::HostMismatch),
            Self::Head(HeadError::UseConnect),
            Self::Head(HeadError::NotForProxy),
            Self::HeadTimeout,
            Self::Resolve(error),
            Self::ResolveTimeout,
            Self::Connect(error),
            Self::ConnectTimeout,
            Self::Response(HeadError::TooLarge),
            Self::TooManyConnections,
            Self::SniMismatch,
            Self::NoSni,
            Self::NotHttp,
            Self::NotTls,
            Self::BadHello,
            Self::NoAuthority,
            Self::UpstreamTls(String::new()),
            RequestDenial::Method.into(),
            RequestDenial::Path.into(),
            RequestDenial::AmbiguousPath.into(),
            RequestDenial::Override.into(),
            SecretDenial::Elsewhere(String::new()).into(),
            SecretDenial::PlainText(String::new()).into(),
            SecretDenial::Location { secret: String::new(), location: "query" }.into(),
        ]
    }
}

fn is_metadata(host: &Host) -> bool {
    matches!(host, Host::Address(address) if AddressClass::of(*address) == AddressClass::Metadata)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::HostError;

    #[test]
    fn refusal_responses() {
        let target = HostPort::parse("api.example.com:443", None).unwrap();
        let literal = HostPort::parse("169.254.169.254:80", None).unwrap();
        let address = "169.254.169.254".parse().unwrap();
        let responses: Vec<String> = [
            (Denial::NoRule.into(), Some(&target)),
            (Denial::NoRule.into(), Some(&literal)),
            (Denial::Private(address).into(), Some(&target)),
            (Denial::Metadata(address).into(), Some(&target)),
            (Refusal::Resolve(io::ErrorKind::HostUnreachable), Some(&target)),
            (Refusal::ConnectTimeout, Some(&target)),
            (Refusal::Head(HeadError::TooLarge), None),
            (Refusal::Head(HeadError::Host(HostError::Character('\r'))), None),
            (Refusal::Head(HeadError::UseConnect), None),
            (Refusal::TooManyConnections, None),
            (Refusal::NotApproved, Some(&target)),
            (Refusal::UnknownAddress, Some(&literal)),
            (Refusal::NoAuthority, Some(&target)),
            (Refusal::UpstreamTls("invalid peer certificate: UnknownIssuer".to_owned()), Some(&target)),
            (RequestDenial::Method.into(), Some(&target)),
            (RequestDenial::AmbiguousPath.into(), Some(&target)),
            (SecretDenial::Elsewhere("github".to_owned()).into(), Some(&target)),
            (SecretDenial::PlainText("github".to_owned()).into(), Some(&target)),
            (SecretDenial::Location { secret: "github".to_owned(), location: "query" }.into(), Some(&target)),
        ]
        .map(|(refusal, target): (Refusal, _)| refusal.response(target, &Remedy::Run).replace('\r', ""))
        .into();
        insta::assert_snapshot!(responses.join("--\n"));
    }
}
