//! Connecting to a destination: find the rule or wait for approval, resolve once, check every address, connect.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::context::Context;
use crate::decision::Decision;
use crate::peer_socket::mark_proxied;
use crate::refusal::Refusal;
use crate::rules::{Host, HostPort, Policy};

/// Maximum number of addresses of a host to try.
const MAX_ATTEMPTS: usize = 4;

/// Connects to `target` and records the rule and the address in `decision`.
pub(crate) async fn connect(
    context: &Context,
    target: &HostPort,
    decision: &mut Decision,
) -> Result<TcpStream, Refusal> {
    let rule = context.authorize(target).await?;
    decision.rule = Some(rule.clone());
    let addresses = match &target.host {
        Host::Address(address) => vec![*address],
        Host::Name(name) => {
            let lookup = context.lookup.lookup(name);
            match timeout(context.limits.resolve_timeout, lookup).await {
                Err(_) => return Err(Refusal::ResolveTimeout),
                Ok(Err(error)) => return Err(Refusal::Resolve(error.kind())),
                Ok(Ok(addresses)) => addresses,
            }
        }
    };
    Policy::check_addresses(&rule, &addresses)?;
    let (stream, address) = connect_to_any(&addresses, target.port, context.limits.connect_timeout).await?;
    decision.address = Some(address);
    Ok(stream)
}

/// Tries the addresses in order; returns the first connection, or the reason why the last attempt failed.
async fn connect_to_any(
    addresses: &[IpAddr],
    port: u16,
    attempt_timeout: Duration,
) -> Result<(TcpStream, IpAddr), Refusal> {
    let mut last = Refusal::Resolve(io::ErrorKind::NotFound);
    for &address in addresses.iter().take(MAX_ATTEMPTS) {
        match timeout(attempt_timeout, open(SocketAddr::new(address, port))).await {
            Ok(Ok(stream)) => {
                // Small writes of a tunnelled protocol must not be delayed.
                stream.set_nodelay(true).map_err(|error| Refusal::Connect(error.kind()))?;
                return Ok((stream, address));
            }
            Ok(Err(error)) => last = Refusal::Connect(error.kind()),
            Err(_) => last = Refusal::ConnectTimeout,
        }
    }
    Err(last)
}

/// Opens a connection. Connections to loopback are marked, so that a server on this host does not mistake a guest for
/// the user who runs the proxy.
async fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    mark_proxied(&socket, address.ip())?;
    socket.connect(address).await
}
