//! Checks the sockets for egress that an init has sent, because the host does not trust the init.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::sockopt::{socket_acceptconn, socket_type};
use rustix::net::{SocketType, getsockname};

use ringfence_core::{DNS_PORT, EgressSockets, MIRROR_PORT, PROXY_PORT};

/// Returns the sockets of a new sandbox if they are exactly those for its ports.
pub(crate) fn check_sockets(descriptors: Vec<OwnedFd>, ports: &BTreeSet<u16>) -> Option<EgressSockets> {
    let sockets = EgressSockets::from_descriptors(descriptors)?;
    let loopback = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    let is_resolver = is_bound(&sockets.resolver, SocketType::DGRAM, loopback(DNS_PORT));
    let services = [(&sockets.resolver_tcp, DNS_PORT), (&sockets.proxy, PROXY_PORT), (&sockets.mirror, MIRROR_PORT)];
    let are_services = services.into_iter().all(|(socket, port)| is_listener(socket, loopback(port)));
    let are_transparent = sockets.transparent.len() == ports.len()
        && sockets.transparent.iter().zip(ports).all(|(socket, port)| is_listener(socket, everywhere(*port)));
    (is_resolver && are_services && are_transparent).then_some(sockets)
}

/// Returns a listener for transparent connections if it is one for this port.
pub(crate) fn check_transparent_listener(descriptor: OwnedFd, port: u16) -> Option<TcpListener> {
    is_listener(&descriptor, everywhere(port)).then(|| descriptor.into())
}

fn everywhere(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port)
}

fn is_listener(socket: impl AsFd, address: SocketAddrV4) -> bool {
    socket_acceptconn(&socket) == Ok(true) && is_bound(socket, SocketType::STREAM, address)
}

fn is_bound(socket: impl AsFd, kind: SocketType, address: SocketAddrV4) -> bool {
    let found = getsockname(&socket).ok().and_then(|found| SocketAddr::try_from(found).ok());
    socket_type(&socket) == Ok(kind) && found == Some(address.into())
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn only_a_listener_for_all_addresses_and_the_port_is_accepted() {
        let listener = TcpListener::bind(everywhere(0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let check = |socket: OwnedFd, port| check_transparent_listener(socket, port).is_some();
        assert!(check(listener.try_clone().unwrap().into(), port));
        assert!(!check(listener.into(), port.wrapping_add(1)), "another port");
        let local = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = local.local_addr().unwrap().port();
        assert!(!check(local.into(), port), "another address");
        let datagrams = UdpSocket::bind(everywhere(0)).unwrap();
        let port = datagrams.local_addr().unwrap().port();
        assert!(!check(datagrams.into(), port), "not a listener");
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert!(!check(file, port), "not a socket");
    }

    #[test]
    fn missing_sockets_are_noticed() {
        assert!(check_sockets(Vec::new(), &BTreeSet::new()).is_none());
    }
}
