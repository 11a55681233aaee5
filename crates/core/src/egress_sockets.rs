//! The sockets inside a sandbox's network namespace that the host serves.

use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;

/// The sockets that the init opens for [`Network::Egress`](crate::Network::Egress). Only the host has them: if the host
/// closes them, the guest reaches nothing.
#[derive(Debug)]
pub struct EgressSockets {
    /// The resolver, on port 53 of 127.0.0.1.
    pub resolver: UdpSocket,
    /// The resolver for large responses.
    pub resolver_tcp: TcpListener,
    /// The explicit proxy, on [`PROXY_PORT`](crate::PROXY_PORT) of 127.0.0.1.
    pub proxy: TcpListener,
    /// The package mirror, on [`MIRROR_PORT`](crate::MIRROR_PORT) of 127.0.0.1.
    pub mirror: TcpListener,
    /// Listeners for all addresses, one for each port. The local address of a connection is the one that the guest
    /// dialled.
    pub transparent: Vec<TcpListener>,
}

impl EgressSockets {
    /// Returns the descriptors in the order of the fields.
    pub fn into_descriptors(self) -> Vec<OwnedFd> {
        let Self { resolver, resolver_tcp, proxy, mirror, transparent } = self;
        let mut descriptors = vec![resolver.into(), resolver_tcp.into(), proxy.into(), mirror.into()];
        descriptors.extend(transparent.into_iter().map(OwnedFd::from));
        descriptors
    }

    /// Restores the sockets from [`Self::into_descriptors`]. `None` if descriptors are missing.
    pub fn from_descriptors(descriptors: impl IntoIterator<Item = OwnedFd>) -> Option<Self> {
        let mut descriptors = descriptors.into_iter();
        Some(Self {
            resolver: descriptors.next()?.into(),
            resolver_tcp: descriptors.next()?.into(),
            proxy: descriptors.next()?.into(),
            mirror: descriptors.next()?.into(),
            transparent: descriptors.map(TcpListener::from).collect(),
        })
    }
}
