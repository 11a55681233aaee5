//! Opens listeners for transparent connections while the sandbox runs. The init no longer has any privilege then.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};

use crate::error::errno_of;
use crate::namespaces;
use crate::protocol::{Channel, ListenReport};
use ringfence_core::{DEFAULT_EGRESS_PORTS, MAX_EGRESS_PORTS, Network};

/// The ports that the init has opened for the host; `None` without egress. Only the host has the listeners.
pub(super) struct EgressPorts(Option<BTreeSet<u16>>);

impl EgressPorts {
    pub(super) fn new(network: &Network) -> Self {
        Self(network.egress_ports())
    }

    /// Handles a request, and replies on the socket that came with it. A failed reply is ignored: the requester has
    /// ended, and the listener is closed.
    pub(super) fn handle(&mut self, port: u16, passed: Vec<OwnedFd>) {
        let Some(replies) = passed.into_iter().next().map(Channel::from) else { return };
        let _ = match self.listen(port) {
            Ok(listener) => replies.send(&ListenReport::Listening, &[listener.as_fd()]),
            Err(refusal) => replies.send(&refusal, &[]),
        };
    }

    fn listen(&mut self, port: u16) -> Result<TcpListener, ListenReport> {
        let ports = self.0.as_mut().ok_or(ListenReport::NotAllowed)?;
        if !Network::is_egress_port(port) {
            return Err(ListenReport::NotAllowed);
        }
        // A port stays in the set after the host has closed its listener: it can be opened again.
        let is_known = ports.contains(&port);
        if !is_known && ports.len() >= DEFAULT_EGRESS_PORTS.len() + MAX_EGRESS_PORTS {
            return Err(ListenReport::TooMany);
        }
        match namespaces::listen_transparently(port) {
            Ok(listener) => {
                ports.insert(port);
                Ok(listener)
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse && is_known => Err(ListenReport::AlreadyOpen),
            Err(error) if error.kind() == ErrorKind::AddrInUse => Err(ListenReport::InUse),
            Err(error) => Err(ListenReport::Failed { errno: errno_of(&error).raw_os_error() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a port that is free now.
    fn free_port() -> u16 {
        namespaces::listen_transparently(0).unwrap().local_addr().unwrap().port()
    }

    #[test]
    fn ports_are_bounded_and_conflicts_are_told_apart() {
        let port = free_port();
        let mut ports = EgressPorts::new(&Network::egress());
        let listener = ports.listen(port).unwrap();
        assert_eq!(ports.listen(port).err(), Some(ListenReport::AlreadyOpen));
        drop(listener);
        drop(ports.listen(port).unwrap());
        let taken = namespaces::listen_transparently(0).unwrap();
        assert_eq!(ports.listen(taken.local_addr().unwrap().port()).err(), Some(ListenReport::InUse));
        for port in [0, 53, ringfence_core::PROXY_PORT, ringfence_core::MIRROR_PORT] {
            assert_eq!(ports.listen(port).err(), Some(ListenReport::NotAllowed), "{port}");
        }
        assert_eq!(EgressPorts::new(&Network::None).listen(port).err(), Some(ListenReport::NotAllowed));
        let mut full = EgressPorts::new(&Network::Egress { ports: (1..=16).collect() });
        assert_eq!(full.listen(port).err(), Some(ListenReport::TooMany));
    }
}
