//! The network namespace: a loopback interface, and the listener of the egress proxy.

use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::error::{SetupError, SetupStep, errno_of};
use crate::sys;
use ringfence_core::{Network, PROXY_PORT};

/// Makes a network namespace without any interface that is up.
pub(crate) fn enter_network_namespace() -> Result<(), SetupError> {
    sys::unshare(libc::CLONE_NEWNET).step(|| "make a network namespace".into())
}

/// Brings up the loopback interface. Returns the listener for the egress proxy, if `network` has one.
pub(crate) fn set_up_network(network: Network) -> Result<Option<OwnedFd>, SetupError> {
    let describe = || "set up the loopback interface".to_owned();
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).step(describe)?;
    sys::bring_up_loopback(socket.as_fd()).step(describe)?;
    match network {
        Network::None => Ok(None),
        Network::Proxy => TcpListener::bind(("127.0.0.1", PROXY_PORT))
            .map(|listener| Some(listener.into()))
            .map_err(|error| errno_of(&error))
            .step(|| "listen for the egress proxy".into()),
    }
}
