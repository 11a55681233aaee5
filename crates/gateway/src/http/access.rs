//! Who may connect to a server without tokens.
//!
//! Loopback is open to every user of the host, so the owner of the other end is looked up once for each connection. A
//! connection whose owner is not known is refused.

use axum::http::StatusCode;
use axum::response::Response;
use ringfence_egress::{PeerSocket, distinct_own_uid};
use tokio::net::TcpStream;

use super::{HttpOptions, refuse};

pub(super) enum Access {
    /// A token decides later, or authentication is switched off.
    Anyone,
    /// The user of the server and root, and with `others` every user of the host. Never guests.
    Local { uid: Option<u32>, others: bool },
}

/// The origin of a connection, known before its first request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Unknown,
    /// The user of the server, or root.
    Owner,
    Refused(Refused),
}

/// Why a connection without a token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    OtherUser(u32),
    /// The egress proxy opened it for a guest.
    Guest,
    UnknownUser,
}

impl Access {
    pub(super) fn new(options: &HttpOptions) -> Self {
        if options.tokens.is_empty() && !options.insecure_no_auth {
            Self::Local { uid: distinct_own_uid(), others: options.allow_local_users }
        } else {
            Self::Anyone
        }
    }

    pub(super) fn judge(&self, stream: &TcpStream) -> Origin {
        let Self::Local { uid, others } = *self else { return Origin::Unknown };
        let found = stream.local_addr().and_then(|local| PeerSocket::find(local, stream.peer_addr()?));
        if let Err(error) = &found {
            tracing::debug!("the owner of a connection is not known: {error}");
        }
        decide(found.ok(), uid, others)
    }
}

fn decide(peer: Option<PeerSocket>, own: Option<u32>, others: bool) -> Origin {
    match peer {
        Some(PeerSocket { is_proxied: true, .. }) => Origin::Refused(Refused::Guest),
        Some(PeerSocket { uid, .. }) if uid == 0 || Some(uid) == own => Origin::Owner,
        // Without a report the connection could be one of the egress proxy's.
        None => Origin::Refused(Refused::UnknownUser),
        Some(_) if others => Origin::Unknown,
        Some(PeerSocket { uid, .. }) => Origin::Refused(Refused::OtherUser(uid)),
    }
}

impl Refused {
    /// The outcome in the audit.
    pub(super) fn outcome(self) -> &'static str {
        match self {
            Self::OtherUser(_) => "other_local_user",
            Self::Guest => "guest_without_token",
            Self::UnknownUser => "unknown_local_user",
        }
    }

    pub(super) fn response(self) -> Response {
        let remedy = "configure a token ([server.tokens.NAME] or RINGFENCE_AUTH_TOKEN) and send it";
        let or_open = format!("{remedy}, or start the server with --allow-local-users");
        let rule = "without a token only root and the user who runs the server may use it";
        let (why, hint) = match self {
            Self::OtherUser(uid) => (format!("this connection belongs to uid {uid}"), &or_open[..]),
            Self::Guest => ("this connection comes from a sandbox, through the egress proxy".into(), remedy),
            Self::UnknownUser => ("the owner of this connection cannot be determined".into(), &or_open[..]),
        };
        refuse(StatusCode::FORBIDDEN, &format!("{why}: {rule} (server.allow_local_users)"), hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_user_and_root_connect_without_a_token() {
        let peer = |uid, is_proxied| Some(PeerSocket { uid, is_proxied });
        for (peer, others, expected) in [
            (peer(1000, false), false, Origin::Owner),
            (peer(0, false), false, Origin::Owner),
            (peer(1001, false), false, Origin::Refused(Refused::OtherUser(1001))),
            (None, false, Origin::Refused(Refused::UnknownUser)),
            (peer(1001, false), true, Origin::Unknown),
            (None, true, Origin::Refused(Refused::UnknownUser)),
            (peer(1000, true), false, Origin::Refused(Refused::Guest)),
            (peer(0, true), true, Origin::Refused(Refused::Guest)),
        ] {
            assert_eq!(decide(peer, Some(1000), others), expected, "{peer:?} {others}");
        }
        assert_eq!(decide(peer(65534, false), None, false), Origin::Refused(Refused::OtherUser(65534)));
    }
}
