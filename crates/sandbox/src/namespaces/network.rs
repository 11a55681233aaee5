//! The network namespace: a loopback interface, and the sockets through which the host serves egress.
//!
//! With egress, all addresses of [`EGRESS_RANGE`] are local. The host's resolver maps each allowed name to one of them,
//! and listeners on the unspecified address accept connections to all of them.

use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::AsFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::error::{SetupError, SetupStep, errno_of};
use crate::sys;
use ringfence_core::{DNS_PORT, EGRESS_PREFIX_LENGTH, EGRESS_RANGE, EgressSockets, MIRROR_PORT, Network, PROXY_PORT};

/// The address that the loopback interface has besides 127.0.0.1: one of [`EGRESS_RANGE`].
const INTERFACE_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 19, 255, 254);

/// Makes a network namespace without any interface that is up.
pub(crate) fn enter_network_namespace() -> Result<(), SetupError> {
    sys::unshare(libc::CLONE_NEWNET).step(|| "make a network namespace".into())
}

/// Brings up the loopback interface. Returns the sockets for the host, if `network` has egress.
pub(crate) fn set_up_network(network: &Network) -> Result<Option<EgressSockets>, SetupError> {
    let describe = || "set up the loopback interface".to_owned();
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).step(describe)?;
    sys::bring_up_loopback(socket.as_fd()).step(describe)?;
    let Some(ports) = network.egress_ports() else { return Ok(None) };
    sys::add_local_network(EGRESS_RANGE, EGRESS_PREFIX_LENGTH, INTERFACE_ADDRESS)
        .step(|| "make the addresses for egress local".into())?;
    open_sockets(ports).map(Some).map_err(|error| errno_of(&error)).step(|| "open the sockets for egress".into())
}

/// Opens a listener for connections to every address of the sandbox.
pub(crate) fn listen_transparently(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
}

fn open_sockets(ports: impl IntoIterator<Item = u16>) -> io::Result<EgressSockets> {
    let loopback = |port| (Ipv4Addr::LOCALHOST, port);
    Ok(EgressSockets {
        resolver: UdpSocket::bind(loopback(DNS_PORT))?,
        resolver_tcp: TcpListener::bind(loopback(DNS_PORT))?,
        proxy: TcpListener::bind(loopback(PROXY_PORT))?,
        mirror: TcpListener::bind(loopback(MIRROR_PORT))?,
        transparent: ports.into_iter().map(listen_transparently).collect::<Result<_, _>>()?,
    })
}
