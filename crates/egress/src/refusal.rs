//! Why a request does not go through, and how the guest is told.
//!
//! An answer holds only text of ours and hosts in their checked spelling, never raw bytes of the
//! guest, so that it cannot be split or forged.

use std::io;
use std::net::IpAddr;

use super::address::Reach;
use super::head::HeadError;
use super::host::{Host, Target};

/// Why a request or a tunnel ended.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("no rule allows this host")]
    NoRule,
    #[error("no rule allows this port of the host")]
    WrongPort,
    #[error("{0} is a private address")]
    Private(IpAddr),
    #[error("{0} is a cloud metadata address")]
    Metadata(IpAddr),
    #[error("{0} is not an address of a host")]
    Unusable(IpAddr),
    #[error("{0}")]
    Head(HeadError),
    #[error("the request head did not arrive in time")]
    HeadTimeout,
    #[error("the name does not resolve: {0}")]
    Resolve(io::ErrorKind),
    #[error("the name did not resolve in time")]
    ResolveTimeout,
    #[error("the connection failed: {0}")]
    Connect(io::ErrorKind),
    #[error("the host did not accept a connection in time")]
    ConnectTimeout,
    #[error("the server's answer cannot be passed on: {0}")]
    Response(HeadError),
    #[error("this sandbox has too many connections open")]
    TooManyConnections,
    #[error("the TLS server name is not the host of the tunnel")]
    SniMismatch,
    #[error("the TLS greeting names no server")]
    NoSni,
    #[error("only HTTP and TLS are allowed on port 80")]
    NotHttp,
    #[error("only TLS is allowed on port 443")]
    NotTls,
    #[error("the TLS greeting is malformed, too large or too slow")]
    BadHello,
}

impl Refusal {
    /// A short name that does not change.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoRule => "no-rule",
            Self::WrongPort => "wrong-port",
            Self::Private(_) => "private-address",
            Self::Metadata(_) => "metadata-address",
            Self::Unusable(_) => "unusable-address",
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
        }
    }

    fn status(&self) -> &'static str {
        match self {
            Self::Head(HeadError::TooLarge) => "431 Request Header Fields Too Large",
            Self::Head(_) => "400 Bad Request",
            Self::HeadTimeout => "408 Request Timeout",
            Self::Resolve(_) | Self::Connect(_) | Self::Response(_) => "502 Bad Gateway",
            Self::ResolveTimeout | Self::ConnectTimeout => "504 Gateway Timeout",
            Self::TooManyConnections => "503 Service Unavailable",
            _ => "403 Forbidden",
        }
    }

    fn hint(&self, target: Option<&Target>) -> Option<String> {
        match (self, target) {
            (Self::NoRule, Some(target)) if is_metadata(&target.host) => Some(format!(
                "a cloud metadata address hands out the machine's credentials; only --network \
                 allow={target} opens it"
            )),
            (Self::NoRule | Self::WrongPort, Some(target)) => Some(format!("allow it with --network allow={target}")),
            (Self::Private(_), Some(target)) => Some(format!("allow it with --network allow={target}+private")),
            (Self::Metadata(_), _) => Some(
                "it holds credentials of the machine; only a rule that names the address itself \
                 allows it"
                    .to_owned(),
            ),
            (Self::Head(error), _) => error.hint().map(str::to_owned),
            (Self::NotHttp, _) => Some("other protocols need a rule that names their port, as in host:2525".to_owned()),
            (Self::TooManyConnections, _) => Some("close some and try again".to_owned()),
            _ => None,
        }
    }

    /// The whole answer to the guest.
    pub(super) fn response(&self, target: Option<&Target>) -> String {
        let what = target.map_or_else(|| "request".to_owned(), |t| format!("egress to {t}"));
        let verb = if self.status().starts_with('5') { "failed" } else { "refused" };
        let hint = self.hint(target);
        let hint = hint.map_or_else(String::new, |hint| format!("hint: {hint}\n"));
        let body = format!("ringfence: {what} {verb}: {self}.\n{hint}");
        format!(
            "HTTP/1.1 {}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
             Connection: close\r\nX-Ringfence-Reason: {}\r\n\r\n{body}",
            self.status(),
            body.len(),
            self.code(),
        )
    }
}

fn is_metadata(host: &Host) -> bool {
    matches!(host, Host::Address(address) if Reach::of(*address) == Reach::Metadata)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostError;

    #[test]
    fn answers() {
        let target = Target::parse("api.example.com:443", None).unwrap();
        let literal = Target::parse("169.254.169.254:80", None).unwrap();
        let address = "169.254.169.254".parse().unwrap();
        let shown: Vec<String> = [
            (Refusal::NoRule, Some(&target)),
            (Refusal::NoRule, Some(&literal)),
            (Refusal::Private(address), Some(&target)),
            (Refusal::Metadata(address), Some(&target)),
            (Refusal::Resolve(io::ErrorKind::HostUnreachable), Some(&target)),
            (Refusal::ConnectTimeout, Some(&target)),
            (Refusal::Head(HeadError::TooLarge), None),
            (Refusal::Head(HeadError::Host(HostError::Character('\r'))), None),
            (Refusal::Head(HeadError::UseConnect), None),
            (Refusal::TooManyConnections, None),
        ]
        .map(|(refusal, target)| refusal.response(target).replace('\r', ""))
        .into();
        insta::assert_snapshot!(shown.join("--\n"));
    }
}
