//! The interface by which the transport identifies the senders of requests.

use axum::http::HeaderMap;
use axum::response::Response;
use ringfence_core::{AuditKind, Principal};
use tokio::net::TcpStream;

use super::connection_table::Peer;

/// Identifies the senders of requests.
pub trait Authenticator: Send + Sync + 'static {
    /// Classifies a new connection, before its first request.
    fn classify(&self, stream: &TcpStream) -> Origin;

    /// Identifies the sender of a request.
    fn authenticate(&self, headers: &HeaderMap, peer: &Peer) -> Result<Principal, Box<Denial>>;
}

/// The origin of a connection, known before its first request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Each request must authenticate.
    Unknown,
    /// The user who runs the server, or root.
    Owner,
    Refused(Refused),
}

/// The reason why a connection without a token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    OtherUser(u32),
    /// The egress proxy opened the connection for a guest.
    Guest,
    UnknownUser,
}

/// The response to a sender that was not identified, and its audit event.
pub struct Denial {
    pub kind: AuditKind,
    pub outcome: &'static str,
    pub response: Response,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Classifies every connection as one of the user who runs the server.
    pub(in crate::http) struct OwnerOnly;

    impl Authenticator for OwnerOnly {
        fn classify(&self, _: &TcpStream) -> Origin {
            Origin::Owner
        }

        fn authenticate(&self, _: &HeaderMap, _: &Peer) -> Result<Principal, Box<Denial>> {
            Ok(Principal::local())
        }
    }
}
