//! Restricts connections to a server without tokens to its own user.
//!
//! Loopback is open to every user of the host, so the owner of the other end is looked up once for each connection. A
//! connection whose owner is not known is refused.

use ringfence_egress::{PeerSocket, distinct_own_uid};
use ringfence_mcp::http::{Origin, Refused};
use tokio::net::TcpStream;

use super::AuthenticationOptions;

pub(super) enum LocalUserCheck {
    /// A token decides later, or authentication is switched off.
    Off,
    /// The user who runs the server and root, and with `others` every user of the host. Never guests.
    On { uid: Option<u32>, others: bool },
}

impl LocalUserCheck {
    pub(super) fn new(options: &AuthenticationOptions) -> Self {
        if options.tokens.is_empty() && !options.insecure_no_auth {
            Self::On { uid: distinct_own_uid(), others: options.allow_local_users }
        } else {
            Self::Off
        }
    }

    pub(super) fn classify(&self, stream: &TcpStream) -> Origin {
        let Self::On { uid, others } = *self else { return Origin::Unknown };
        let found = stream.local_addr().and_then(|local| PeerSocket::find(local, stream.peer_addr()?));
        if let Err(error) = &found {
            tracing::debug!("cannot determine the owner of a connection: {error}");
        }
        decide(found.ok(), uid, others)
    }
}

fn decide(peer: Option<PeerSocket>, own: Option<u32>, others: bool) -> Origin {
    match peer {
        Some(PeerSocket { is_proxied: true, .. }) => Origin::Refused(Refused::Guest),
        Some(PeerSocket { uid, .. }) if uid == 0 || Some(uid) == own => Origin::Owner,
        // An unidentified connection could be one of the egress proxy's.
        None => Origin::Refused(Refused::UnknownUser),
        Some(_) if others => Origin::Unknown,
        Some(PeerSocket { uid, .. }) => Origin::Refused(Refused::OtherUser(uid)),
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
